"""A swarm's manifest: one signed file with all that a node must know to join.

docs/SWARMS.md has the format in full. `read_manifest` parses a file strictly and proves its digest and its signature;
`node_text` makes a node's configuration of it.
"""

from swarmd.manifest.form import Manifest, ManifestChain, ManifestRecipe, ManifestTask, Rounds, Signature, recipe_of
from swarmd.manifest.node import NodeChoice, config_of, node_text
from swarmd.manifest.seal import recipe_digest, sign_manifest, verify
from swarmd.manifest.text import MANIFEST_BYTES_MAX, parse_manifest, read_manifest, render_manifest, write_manifest

__all__ = [
    "MANIFEST_BYTES_MAX",
    "Manifest",
    "ManifestChain",
    "ManifestRecipe",
    "ManifestTask",
    "NodeChoice",
    "Rounds",
    "Signature",
    "config_of",
    "node_text",
    "parse_manifest",
    "read_manifest",
    "recipe_digest",
    "recipe_of",
    "render_manifest",
    "sign_manifest",
    "verify",
    "write_manifest",
]
