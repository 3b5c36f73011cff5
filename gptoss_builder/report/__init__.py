"""The page that describes a build."""
