"""The dashboard: it reads run directories, writes nothing, and never imports TensorFlow."""
