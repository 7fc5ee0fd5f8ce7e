# Kernel levels: the templates of src/cpu/kernels are compiled once per level with that level's flags.
set(level_objects)
