"""How steps are fed and run: in this process or on workers, at once or in parts."""
