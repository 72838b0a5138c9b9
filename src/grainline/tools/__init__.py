"""The command line. `main` declares the commands; each other file does one job and can be used without a terminal."""
