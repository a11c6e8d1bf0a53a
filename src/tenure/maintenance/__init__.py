"""The work of the leader: sweep, settle stalled runs, fire schedules."""
