"""Changes to whole models: put projections in place of other layers, and fold them away again."""
