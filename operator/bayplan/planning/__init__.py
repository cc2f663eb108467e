"""Pure decisions: frozen records in, frozen decisions out. No I/O, no wall clock, no state."""
