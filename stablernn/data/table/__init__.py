"""Tables: how they are written, their columns, repairs and times, and the series that they hold."""
