"""`tenure demo`: the main job under real faults, and an audit that does not trust the queue."""
