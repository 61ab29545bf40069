//! The token tree: a radix forest of token runs over pages.
