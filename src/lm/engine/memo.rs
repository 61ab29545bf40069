//! Token ids of texts that are asked for again and again: a search sends a puzzle's prompt at every thought, with another
//! path after it, and ranks the same few steps. Splitting a prompt of a thousand tokens takes as long as a good part of a
//! step, and the processor's cores have other work.
//!
//! What is remembered is given up as a whole when it grows too large: the texts of the puzzles in flight are back at once.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes of texts and ids that are kept.
const BYTES: usize = 8 << 20;

pub struct Memo<K> {
    known: Mutex<Known<K>>,
}

struct Known<K> {
    /// By what they are read as, and by their text.
    ids: HashMap<K, HashMap<Box<str>, Arc<[u32]>>>,
    bytes: usize,
}

impl<K> Default for Memo<K> {
    fn default() -> Self {
        Self { known: Mutex::new(Known { ids: HashMap::new(), bytes: 0 }) }
    }
}

impl<K: Eq + Hash> Memo<K> {
    /// The ids of `text` read as `kind`: as remembered, or as `find` finds them.
    ///
    /// # Errors
    /// Those of `find`; nothing is remembered then.
    pub fn get<E>(&self, kind: K, text: &str, find: impl FnOnce() -> Result<Vec<u32>, E>) -> Result<Arc<[u32]>, E> {
        let known = || self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(ids) = known().ids.get(&kind).and_then(|texts| texts.get(text)) {
            return Ok(Arc::clone(ids));
        }
        // Others go on meanwhile; two that look for the same text find the same.
        let ids: Arc<[u32]> = find()?.into();
        let bytes = text.len() + size_of_val(&*ids);
        let mut known = known();
        if known.bytes + bytes > BYTES {
            known.ids.clear();
            known.bytes = 0;
        }
        known.bytes += bytes;
        known.ids.entry(kind).or_default().insert(text.into(), Arc::clone(&ids));
        Ok(ids)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn get(memo: &Memo<u8>, kind: u8, text: &str) -> (Vec<u32>, bool) {
        let mut looked = false;
        let find = || {
            looked = true;
            Ok::<_, String>(text.bytes().map(|b| u32::from(b) + u32::from(kind)).collect())
        };
        (memo.get(kind, text, find).unwrap().to_vec(), looked)
    }

    #[test]
    fn a_text_is_looked_up_once_for_each_way_to_read_it() {
        let memo = Memo::default();
        assert_eq!(get(&memo, 0, "ab"), (vec![97, 98], true));
        assert_eq!(get(&memo, 0, "ab"), (vec![97, 98], false));
        assert_eq!(get(&memo, 1, "ab"), (vec![98, 99], true), "another reading is another text");
        assert_eq!(memo.get(0, "bad", || Err("no")), Err("no"));
        assert_eq!(get(&memo, 0, "bad"), (vec![98, 97, 100], true), "a failure is not remembered");
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let memo = Memo::default();
        let text = |i: u32| format!("{i:07}{}", "x".repeat(100_000));
        for i in 0..40 {
            let (ids, looked) = get(&memo, 0, &text(i));
            assert!(looked && ids.len() == 100_007);
            let known = memo.known.lock().unwrap();
            assert!(known.bytes <= BYTES, "{} bytes are kept", known.bytes);
            let counted: usize = known.ids.values().flatten().map(|(text, ids)| text.len() + size_of_val(&**ids)).sum();
            assert_eq!(known.bytes, counted);
        }
        assert!(!get(&memo, 0, &text(39)).1, "the newest is there");
        assert!(get(&memo, 0, &text(0)).1, "the oldest is gone");
    }
}
