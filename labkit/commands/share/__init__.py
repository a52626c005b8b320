"""The commands that write files about runs for people and programs elsewhere."""
