#!lua
-- requires: identity
-- create: write the layout and the identity of a partition that is empty.
--
-- Request: {layout, fresh}, as in parts/identity.lua. Answer: the layout that was there before, or false.
local there = call('GET', key('schema'))
if not there then
  Identity.write(REQUEST.layout, REQUEST.fresh)
end
return there
