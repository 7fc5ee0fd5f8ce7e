"""What every other folder uses: errors, text, files, objects of C and their locks, signals and clocks."""
