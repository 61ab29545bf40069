//! A model's skew on disk, beside the model: a line of JSON that says what it belongs to, then the numbers.
//!
//! What is not whole, not of this model and sample, or not readable is as if it were not there: it is made again.

use super::{LayerSkew, Skew};
use crate::base::{Error, Result};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fmt::Write;
use std::io::Write as _;
use std::path::Path;

const FORMAT: u32 = 2;

/// What a skew was made from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// SHA-256 of the weights.
    pub model: String,
    /// SHA-256 of the sample's token ids and of how activations were kept.
    pub sample: String,
}

#[derive(Debug, Serialize, Deserialize)]
struct Head {
    totara_skew: u32,
    origin: Origin,
    layers: usize,
    hidden: usize,
    kv_heads: usize,
    head_size: usize,
    /// SHA-256 of the numbers' bytes.
    sha256: String,
}

/// SHA-256 as hexadecimal digits.
pub fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().fold(String::new(), |mut text, byte| {
        // Writing into a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// A skew is far below this (a few MiB for the largest model): what is larger is none.
const MOST_BYTES: u64 = 1 << 28;

fn whole(path: &Path) -> Option<Vec<u8>> {
    let meta = std::fs::metadata(path).ok()?;
    (meta.is_file() && meta.len() <= MOST_BYTES).then(|| std::fs::read(path).ok())?
}

/// Reads what was written for `origin`; `None` where there is nothing that can be trusted.
pub fn read(path: &Path, origin: &Origin) -> Option<Skew> {
    let bytes = whole(path)?;
    let end = bytes.iter().take(4096).position(|&b| b == b'\n')?;
    let head: Head = serde_json::from_slice(&bytes[..end]).ok()?;
    let numbers = &bytes[end + 1..];
    let Head { totara_skew, layers, hidden, kv_heads, head_size, .. } = head;
    let (mean, shift) = (kv_heads.checked_mul(head_size)?, hidden);
    let columns = mean.checked_mul(head_size)?;
    let layer = columns.checked_add(mean)?.checked_add(shift)?.checked_add(2)?;
    let sizes = layer.checked_mul(layers)?.checked_mul(4)? == numbers.len() && columns > 0;
    if totara_skew != FORMAT || head.origin != *origin || !sizes || head.sha256 != digest(numbers) {
        return None;
    }
    let numbers: Vec<f32> = numbers.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
    let layers = numbers.chunks_exact(layer).map(|all| {
        let (columns, rest) = all.split_at(columns);
        let (mean, rest) = rest.split_at(mean);
        let (shift, rest) = rest.split_at(shift);
        let [columns, mean, shift] = [columns, mean, shift].map(<[f32]>::to_vec);
        LayerSkew { columns, mean, shift, ahead: rest[0], same: rest[1] }
    });
    Some(Skew { hidden, kv_heads, head_size, layers: layers.collect() })
}

/// Writes a skew for `origin`, whole or not at all.
pub fn write(path: &Path, origin: &Origin, skew: &Skew) -> Result<()> {
    let numbers: Vec<u8> = skew
        .layers
        .iter()
        .flat_map(|l| [&l.columns, &l.mean, &l.shift].into_iter().flatten().chain([&l.ahead, &l.same]))
        .flat_map(|x| x.to_le_bytes())
        .collect();
    let head = Head {
        totara_skew: FORMAT,
        origin: origin.clone(),
        layers: skew.layers.len(),
        hidden: skew.hidden,
        kv_heads: skew.kv_heads,
        head_size: skew.head_size,
        sha256: digest(&numbers),
    };
    let mut bytes = serde_json::to_vec(&head).map_err(|e| Error::fault(e.to_string()))?;
    bytes.push(b'\n');
    bytes.extend(numbers);
    let part = path.with_extension(format!("part-{}", std::process::id()));
    // Anew: what lies there under this name is not ours, and may be a link.
    let mut file = std::fs::File::create_new(&part).map_err(|e| Error::fault(format!("{}: {e}", part.display())))?;
    let written = file.write_all(&bytes).and_then(|()| std::fs::rename(&part, path));
    written.map_err(|e| {
        // What could not be finished is of no use; that it cannot be removed changes nothing.
        let _ = std::fs::remove_file(&part);
        Error::fault(format!("{}: {e}", path.display()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_skew_comes_back_and_a_damaged_or_foreign_one_does_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.skew");
        let origin = Origin { model: "a".into(), sample: "b".into() };
        let layer = |x: f32| LayerSkew {
            columns: (0..8).map(|i| x + i as f32).collect(),
            mean: vec![x; 4],
            shift: (0..8).map(|i| x - i as f32).collect(),
            ahead: 0.5,
            same: x,
        };
        let skew = Skew { hidden: 8, kv_heads: 2, head_size: 2, layers: vec![layer(1.0), layer(2.0)] };
        assert!(read(&path, &origin).is_none());
        write(&path, &origin, &skew).unwrap();
        assert_eq!(read(&path, &origin), Some(skew.clone()));
        assert!(read(&path, &Origin { model: "c".into(), ..origin.clone() }).is_none());
        let good = std::fs::read(&path).unwrap();
        for at in [1, good.len() / 2, good.len() - 1] {
            let mut bad = good.clone();
            bad[at] ^= 4;
            std::fs::write(&path, &bad).unwrap();
            assert!(read(&path, &origin).is_none(), "byte {at}");
        }
        std::fs::write(&path, &good[..good.len() - 4]).unwrap();
        assert!(read(&path, &origin).is_none());
        assert!(write(&folder.path().join("no/such"), &origin, &skew).is_err());
        // A hole of a terabyte, a folder, and a link to what never ends.
        std::fs::File::create(&path).unwrap().set_len(1 << 40).unwrap();
        assert!(read(&path, &origin).is_none());
        assert!(read(folder.path(), &origin).is_none());
        let link = folder.path().join("endless.skew");
        std::os::unix::fs::symlink("/dev/zero", &link).unwrap();
        assert!(read(&link, &origin).is_none());
        // A link that waits where the new file is first written is left alone.
        let theirs = folder.path().join("theirs");
        std::os::unix::fs::symlink(&theirs, path.with_extension(format!("part-{}", std::process::id()))).unwrap();
        assert!(write(&path, &origin, &skew).is_err() && !theirs.exists());
    }
}
