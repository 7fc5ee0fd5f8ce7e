"""What profiles hold: records as C keeps them, the limits of the machine, and tables of both."""
