"""What each stage does: one function a stage, files in, files out. `components.run` calls them in a process of their own."""
