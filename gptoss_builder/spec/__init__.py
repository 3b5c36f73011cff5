"""The spec: schema, loader with positions, JSON Schema."""
