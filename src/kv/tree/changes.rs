//! Which segments changed lately, for those who keep something made of the tree and bring it up to date.

use super::SegmentId;

/// Changes that are kept at least.
const KEPT: usize = 256;

#[derive(Debug, Clone, Default)]
pub(super) struct Changes {
    dropped: u64,
    kept: Vec<SegmentId>,
}

impl Changes {
    pub fn note(&mut self, id: SegmentId) {
        if self.kept.len() == 2 * KEPT {
            self.kept.drain(..KEPT);
            self.dropped += KEPT as u64;
        }
        self.kept.push(id);
    }

    pub fn count(&self) -> u64 {
        self.dropped + self.kept.len() as u64
    }

    /// Those after the first `count`; `None` where they are not all kept.
    pub fn since(&self, count: u64) -> Option<&[SegmentId]> {
        let from = usize::try_from(count.checked_sub(self.dropped)?).ok()?;
        self.kept.get(from..)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_changes_are_forgotten_and_never_told_wrongly() {
        let mut changes = Changes::default();
        for i in 0..5000u32 {
            changes.note(SegmentId(i));
            let count = changes.count();
            assert_eq!(count, u64::from(i) + 1);
            assert_eq!(changes.since(count), Some(&[][..]));
            assert_eq!(changes.since(count + 1), None);
            for back in [1, KEPT as u64, 3 * KEPT as u64] {
                let from = count.saturating_sub(back);
                let told = changes.since(from);
                assert!(back > KEPT as u64 || told.is_some());
                let expected = || (from as u32..=i).map(SegmentId).collect::<Vec<_>>();
                assert!(told.is_none_or(|t| *t == expected()[..]));
            }
        }
    }
}
