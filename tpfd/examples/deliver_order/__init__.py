"""deliver-order: orders that are packed and given to a courier, who may be busy or gone."""
