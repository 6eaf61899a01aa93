"""Server processes: one, or several behind a supervisor."""
