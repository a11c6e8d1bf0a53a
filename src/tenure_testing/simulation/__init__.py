"""The simulation: whole fleets of real workers in virtual time, with seeded faults and checked invariants."""
