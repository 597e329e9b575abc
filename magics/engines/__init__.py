"""Where else than here a notebook's ranks can run (``--on``): what a line may say of it, and who starts them there."""
