-- What a crash leaves behind: which jobs went down with their process, and where the handlers of the living are. Neither
-- is looked for by any index, so the columns come last and no row is written anew.

ALTER TABLE job ADD COLUMN quarantined INTEGER NOT NULL DEFAULT 0;

ALTER TABLE run ADD COLUMN trace TEXT;

-- Those that went down with it before anybody marked them.
UPDATE job
   SET quarantined = 1
 WHERE finished IS NULL
   AND reason IN ('process_died', 'lease_expired', 'loop_blocked');
