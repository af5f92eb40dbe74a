"""The parts in other libraries' loops."""
