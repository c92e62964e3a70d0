"""Namespaces that let scripts written for other libraries run by changing an import line."""
