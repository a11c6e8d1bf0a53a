-- waiting: the inboxes, waits and recorded steps of jobs, and the outbox of ends.

-- name: insert_token
-- Stores a token under a key that has none yet.
-- `failed`: 1 or 0.
INSERT INTO token (seq, box, key, place, body)
VALUES (
    :seq,
    :box,
    :key,
    CASE
    WHEN :failed = 0 THEN coalesce((SELECT completed FROM inbox WHERE seq = :seq AND box = :box), 0) + 1
    END,
    :body::bytea
)
ON CONFLICT (seq, box, key) DO NOTHING;

-- name: any_token
-- Returns a row if one of several keys has a token.
-- `keys`: a list.
SELECT 1
  FROM jsonb_array_elements_text(:keys::jsonb) AS listed (key)
  JOIN token
    ON token.seq = :seq
   AND token.box = :box
   AND token.key = listed.key
 LIMIT 1;

-- name: insert_tokens
-- Stores completed tokens under keys that have none yet.
-- `keys`: a list.
INSERT INTO token (seq, box, key, place)
SELECT :seq::bigint,
       :box,
       listed.key,
       listed.place + coalesce((SELECT completed FROM inbox WHERE seq = :seq AND box = :box), 0)
  FROM jsonb_array_elements_text(:keys::jsonb) WITH ORDINALITY AS listed (key, place);

-- name: raise_token
-- Replaces a failed token by a completed one.
UPDATE token
   SET place = coalesce((SELECT completed FROM inbox WHERE seq = :seq AND box = :box), 0) + 1,
       body = :body
 WHERE seq = :seq
   AND box = :box
   AND key = :key
   AND place IS NULL;

-- name: count_token
-- Adds to the numbers of a box.
INSERT INTO inbox (seq, box, failed, completed) VALUES (:seq, :box, :failed, :completed)
ON CONFLICT (seq, box) DO UPDATE
   SET failed = inbox.failed + excluded.failed,
       completed = inbox.completed + excluded.completed;

-- name: seal
-- Records how many keys a box will have, unless a number at least as large is known.
INSERT INTO inbox (seq, box, failed, completed, total) VALUES (:seq, :box, 0, 0, :total)
ON CONFLICT (seq, box) DO UPDATE
   SET total = excluded.total
 WHERE inbox.total IS NULL
    OR inbox.total < excluded.total;

-- name: boxes
-- Returns the boxes of an inbox: name, numbers of failed and completed tokens, total, and the first failed key.
SELECT box,
       failed,
       completed,
       total,
       CASE
       WHEN failed > 0 THEN (
            SELECT key
              FROM token
             WHERE token.seq = inbox.seq
               AND token.box = inbox.box
               AND place IS NULL
             ORDER BY length(key), key
             LIMIT 1
            )
       END
  FROM inbox
 WHERE seq = :seq;

-- name: body
-- Returns the content of a completed token.
-- `place`: its number in its box.
SELECT body
  FROM token
 WHERE seq = :seq
   AND box = :box
   AND place = :place
   AND body IS NOT NULL;

-- name: mark_inbox
-- Records that a job has an inbox, so that it is deleted with the job.
UPDATE job SET links = '' WHERE seq = :seq AND links IS NULL;

-- name: move_tokens
-- Gives an inbox to another job.
UPDATE token SET seq = :to WHERE seq = :seq;

-- name: move_boxes
UPDATE inbox SET seq = :to WHERE seq = :seq;

-- name: delete_tokens
DELETE FROM token WHERE seq = :seq;

-- name: delete_boxes
DELETE FROM inbox WHERE seq = :seq;

-- name: delete_steps
DELETE FROM step WHERE seq = :seq;

-- name: record_steps
-- Records steps, each unless one of its name is recorded already.
-- Parameters: steps (a list of seq, name, run, at, met_by, kind, took, start and length of the body in `bodies`), bodies.
INSERT INTO step (seq, name, number, run, at, met_by, kind, took, body)
SELECT (value ->> 0)::bigint,
       value ->> 1,
       coalesce((SELECT max(number) FROM step WHERE seq = (value ->> 0)::bigint), 0) + place,
       (value ->> 2)::bigint,
       (value ->> 3)::bigint,
       value ->> 4,
       value ->> 5,
       (value ->> 6)::bigint,
       substr(:bodies, (value ->> 7)::integer, (value ->> 8)::integer)
  FROM jsonb_array_elements(:steps::jsonb) WITH ORDINALITY AS listed (value, place)
 ORDER BY place
    ON CONFLICT (seq, name) DO NOTHING;

-- name: record_step
-- The same for one step.
INSERT INTO step (seq, name, number, run, at, met_by, kind, took, body)
SELECT :seq::bigint, :name, coalesce(max(number), 0) + 1, :run::bigint, :at::bigint, :met_by, :kind, :took::bigint,
       :body::bytea
  FROM step
 WHERE seq = :seq
    ON CONFLICT (seq, name) DO NOTHING;

-- name: mark_inboxes
-- Records that jobs have recorded steps, so that these are deleted with the jobs.
-- `seqs`: a list.
UPDATE job
   SET links = ''
 WHERE seq = ANY (translate(:seqs, '[]', '{}')::bigint[])
   AND links IS NULL;

-- name: steps
-- Returns the recorded steps of a job, in their order.
SELECT name, run, at, met_by, body, kind, took FROM step WHERE seq = :seq ORDER BY number;

-- name: step_ends
-- The same without their values.
SELECT name, run, at, met_by, NULL, kind, took FROM step WHERE seq = :seq ORDER BY number;

-- name: forget_steps
-- `names`: a list.
DELETE FROM step WHERE seq = :seq AND name = ANY (names_in(:names));

-- name: unread
-- Returns how many signals of a box the job has not read, unless this one is in the box already.
SELECT failed + completed - read
  FROM inbox
 WHERE seq = :seq
   AND box = :box
   AND NOT EXISTS (SELECT 1 FROM token WHERE seq = :seq AND box = :box AND key = :key AND place IS NOT NULL);

-- name: note_read
-- Records that the job was awakened with the first `count` signals of a box.
UPDATE inbox SET read = :count WHERE seq = :seq AND box = :box AND read < :count;

-- name: set_links
UPDATE job SET links = :links WHERE seq = :seq;

-- name: set_wake_time
UPDATE job_live SET wake_at = :wake_at WHERE seq = :seq;

-- name: suspend
-- Suspends the job of a run, if the run is the current one.
UPDATE job_live
   SET state = 'suspended',
       expires_at = NULL,
       reason = :reason,
       failures = failures + :failures,
       stalls = stalls + :stalls,
       releases = releases + :releases,
       links = :links,
       wake_at = NULL,
       quarantined = 0,
       put_back_used = 0,
       settled_fence = fence,
       owner = NULL,
       heard_at = NULL,
       lease_until = NULL,
       suspect_until = NULL,
       run_until = NULL,
       progress_until = NULL,
       run_end = :now,
       run_ended = :ended,
       run_reason = :why,
       run_detail = :detail,
       run_trace = NULL
 WHERE seq = :seq
   AND state = 'active'
   AND fence = :fence
   AND owner = :owner
   AND cancel_at IS NULL;

-- name: suspend_again
-- Suspends an ended job with new budgets; see `redriven` in core/transition.py.
UPDATE job
   SET day = 0,
       state = 'suspended',
       expires_at = NULL,
       deadline = :deadline,
       failures = 0,
       stalls = 0,
       releases = 0,
       redrives = 0,
       redrive_at = NULL,
       cancel_at = NULL,
       cancel_reason = NULL,
       cancel_by = NULL,
       finished = NULL,
       kept_until = NULL,
       error = :error,
       reason = NULL,
       fault = NULL,
       progress = NULL,
       progress_note = NULL,
       links = :links
 WHERE day >= 1
   AND seq = :seq;

-- name: wake
-- Puts a suspended job back into its queue, with new budgets.
UPDATE job_live
   SET state = 'waiting',
       run_at = :now,
       score = :score,
       expires_at = :expires_at,
       failures = 0,
       stalls = 0,
       reason = NULL,
       wake_at = NULL
 WHERE seq = :seq
   AND state = 'suspended';

-- name: end
-- Ends a suspended job.
UPDATE job
   SET day = day_of(:now),
       state = :state,
       finished = :now,
       reason = :reason,
       error = :error,
       fault = :fault,
       wake_at = NULL
 WHERE day = 0
   AND seq = :seq
   AND state = 'suspended';

-- name: due
-- The suspended jobs of a queue whose time has come, the earliest first.
SELECT seq
  FROM job_live
 WHERE queue = :queue
   AND state = 'suspended'
   AND wake_at <= :now
 ORDER BY wake_at, id
 LIMIT :limit;

-- name: due_queues
-- The queues that have suspended jobs whose time has come, by name, with two index steps per queue that has any.
WITH RECURSIVE found (queue) AS (
       SELECT (SELECT min(queue)
                 FROM job_live
                WHERE state = 'suspended')
       UNION ALL
       SELECT (SELECT min(queue)
                 FROM job_live
                WHERE state = 'suspended' AND queue > found.queue)
         FROM found
        WHERE found.queue IS NOT NULL
)
SELECT queue
  FROM found
 WHERE queue IS NOT NULL
   AND EXISTS (
              SELECT 1
                FROM job_live
               WHERE job_live.queue = found.queue
                 AND state = 'suspended'
                 AND wake_at <= :now
       );

-- name: insert_entry
-- Writes an entry of the outbox, and returns its number.
INSERT INTO entry (queue, id, completed, total, done, at) VALUES (:queue, :id, :completed, :total, 0, :at)
RETURNING number;

-- name: insert_page
INSERT INTO entry_page (number, page, dependents) VALUES (:number, :page, :dependents);

-- name: failed_entries
-- The numbers of the entries for failed ends of a job.
SELECT number FROM entry WHERE queue = :queue AND id = :id AND completed = 0;

-- name: pages
-- The dependents of an entry, from one page up to another one.
SELECT dependents FROM entry_page WHERE number = :number AND page >= :first AND page <= :last ORDER BY page;

-- name: entry
SELECT queue, id, total, done FROM entry WHERE number = :number;

-- name: due_entries
-- The entries that a sweep hands out, those first that have waited longest.
SELECT number, queue, id, completed, done
  FROM entry
 WHERE at <= :now
 ORDER BY at, number
 LIMIT :limit;

-- name: advance_entry
UPDATE entry SET done = :done, at = :at WHERE number = :number;

-- name: delete_entry
DELETE FROM entry WHERE number = :number;

-- name: delete_pages
DELETE FROM entry_page WHERE number = :number;
