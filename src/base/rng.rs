//! Random streams by label: the same seed and parts always give the same numbers, whoever else draws.

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use sha2::{Digest, Sha256};

/// The stream for `label` under `seed`, split further by `parts` (puzzle, node, sample index, …).
pub fn stream(seed: u64, label: &str, parts: &[u64]) -> ChaCha8Rng {
    let mut hash = Sha256::new();
    hash.update(seed.to_le_bytes());
    hash.update((label.len() as u64).to_le_bytes());
    hash.update(label.as_bytes());
    for part in parts {
        hash.update(part.to_le_bytes());
    }
    ChaCha8Rng::from_seed(hash.finalize().into())
}

/// A number for a text, to be used as a part of a stream (a puzzle's id, say).
pub fn part(text: &str) -> u64 {
    let digest = Sha256::digest(text.as_bytes());
    u64::from_le_bytes(std::array::from_fn(|i| digest[i]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::RngCore;

    #[test]
    fn streams_depend_on_seed_label_and_every_part() {
        let first = |seed, label, parts: &[u64]| stream(seed, label, parts).next_u64();
        assert_eq!(first(1, "a", &[2, 3]), first(1, "a", &[2, 3]));
        for other in [first(2, "a", &[2, 3]), first(1, "b", &[2, 3]), first(1, "a", &[3, 3]), first(1, "a", &[2])] {
            assert_ne!(first(1, "a", &[2, 3]), other);
        }
    }
}
