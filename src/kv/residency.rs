//! Which items (pages of a layer, rows of a page) lie in which frame of a memory that holds fewer of them. Numbers only.
//!
//! Items that a piece of work needs at once are *pinned* until [`Residency::release`]; what is not pinned may be evicted
//! for others, in an order that the [`Eviction`] gives. Everything is constant time but `fade` (counter), which comes
//! once every few uses of the most used item, and passing pinned frames (FIFO), which a release pays for.

/// Who goes first. The counter is InfiniGen's: uses are added up, and a saturated counter lets all fade. It belongs to the item,
/// wherever that is, so that what is wanted often but never stays long enough to be found again gets a frame in the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Eviction {
    #[default]
    Counter,
    Fifo,
    Lru,
    /// The newest: what came first stays, and the rest streams through. For items that are all used in turn, of which any
    /// other order would keep none until its turn comes again.
    Newest,
}

/// What a use adds to a counter, and what it counts to; a saturated one leaves three quarters of all. Small numbers fade to nothing
/// at once: with uses of 1, 15 of them and halves, `bench offload` brings 3 % more on a tree of 20 branches.
const USE: u8 = 8;
const MOST_USES: u8 = 8 * USE;
const LISTS: usize = MOST_USES as usize + 1;

#[derive(Debug, Clone, Copy, Default)]
struct Frame {
    item: Option<u32>,
    pinned: bool,
    /// It was here when it was pinned.
    found: bool,
    before: Option<u32>,
    after: Option<u32>,
}

#[derive(Debug, Clone, Copy, Default)]
struct List {
    first: Option<u32>,
    last: Option<u32>,
}

/// What became of a [`Residency::pin`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pinned {
    /// It was there.
    Found(u32),
    /// It has a frame now, whose content is to be brought; another item may have gone for it.
    New { frame: u32, evicted: bool },
    /// Every frame is pinned.
    Full,
}

#[derive(Debug, Clone)]
pub struct Residency {
    eviction: Eviction,
    frames: Vec<Frame>,
    /// Frame of each item, plus 1; 0 where it has none. Zeroed memory that nobody touches takes none.
    places: Vec<u32>,
    /// Uses of each item, for the counter.
    uses: Vec<u8>,
    /// Frames that may go, by uses (others than the counter use list 0), in order of release.
    lists: [List; LISTS],
    /// The next one to be taken is the last: lower ones first, but for those that were given up since they were sorted.
    free: Vec<u32>,
    /// Frames from here on hold nothing since the last [`Residency::compact`].
    touched: usize,
    /// Frames that may be in use at once.
    limit: usize,
    pinned: Vec<u32>,
    /// FIFO: the next frame to go.
    hand: u32,
}

impl Residency {
    /// Room for `frames` of `items` items, all of them elsewhere.
    pub fn new(items: usize, frames: usize, eviction: Eviction) -> Self {
        let frames = u32::try_from(frames).unwrap_or(u32::MAX - 1);
        Self {
            eviction,
            frames: vec![Frame::default(); frames as usize],
            places: vec![0; items],
            uses: vec![0; items],
            lists: [List::default(); LISTS],
            free: (0..frames).rev().collect(),
            touched: 0,
            limit: frames as usize,
            pinned: Vec::new(),
            hand: 0,
        }
    }

    pub fn frames(&self) -> usize {
        self.frames.len()
    }

    /// The most frames that may hold something; what is over it goes, as far as it is not pinned. How many went.
    pub fn limit(&mut self, frames: usize) -> usize {
        self.limit = frames.min(self.frames.len());
        let before = self.held();
        while self.held() > self.limit {
            let Some(frame) = self.victim() else { break };
            self.unlink(frame);
            self.forget(frame);
            self.free.push(frame);
        }
        before - self.held()
    }

    /// Frames from here on have held nothing since they were last compacted: their memory is not needed.
    pub fn touched(&self) -> usize {
        self.touched
    }

    /// Moves what lies in frames from `frames` on to free ones before, so that `touched` is `frames` at most; tells from which
    /// to which, for their content to follow. Does nothing while something is pinned, or where more frames than that hold something.
    /// O(frames).
    pub fn compact(&mut self, frames: usize) -> Vec<(u32, u32)> {
        if !self.pinned.is_empty() || frames < self.held() || self.touched <= frames {
            return Vec::new();
        }
        self.free.sort_unstable_by(|a, b| b.cmp(a));
        let mut moved = Vec::new();
        for from in frames..self.touched {
            let frame = self.frames[from];
            let Some(item) = frame.item else { continue };
            let Some(to) = self.free.pop() else { break };
            self.frames[to as usize] = frame;
            self.frames[from] = Frame::default();
            self.places[item as usize] = to + 1;
            let list = self.list(to);
            match frame.before {
                Some(before) => self.frames[before as usize].after = Some(to),
                None => self.lists[list].first = Some(to),
            }
            match frame.after {
                Some(after) => self.frames[after as usize].before = Some(to),
                None => self.lists[list].last = Some(to),
            }
            moved.push((from as u32, to));
        }
        self.free.extend(moved.iter().map(|&(from, _)| from));
        self.free.sort_unstable_by(|a, b| b.cmp(a));
        self.touched = frames;
        moved
    }

    /// Frames pinned since the last release.
    pub fn pinned(&self) -> usize {
        self.pinned.len()
    }

    /// The most frames that may hold something at once.
    pub fn room(&self) -> usize {
        self.limit
    }

    /// Frames that hold something.
    pub fn held(&self) -> usize {
        self.frames.len() - self.free.len()
    }

    /// Frames of these items, plus 1; 0 where one has none.
    pub fn places(&self, items: std::ops::Range<usize>) -> &[u32] {
        &self.places[items]
    }

    /// Frees the frames of everything.
    pub fn clear(&mut self) {
        for frame in 0..self.frames.len() as u32 {
            if let Some(item) = self.frames[frame as usize].item {
                self.give(item);
            }
        }
    }

    /// The frame of an item that is here. Counts as no use.
    pub fn find(&self, item: u32) -> Option<u32> {
        self.places[item as usize].checked_sub(1)
    }

    /// Makes sure that `item` has a frame until `release`.
    pub fn pin(&mut self, item: u32) -> Pinned {
        if let Some(frame) = self.find(item) {
            if !self.frames[frame as usize].pinned {
                self.unlink(frame);
                self.frames[frame as usize].found = true;
                self.use_once(frame);
            }
            return Pinned::Found(frame);
        }
        let room = self.held() < self.limit;
        let (frame, evicted) = match self.free.pop_if(|_| room) {
            Some(frame) => (frame, false),
            None => match self.victim() {
                Some(frame) => {
                    self.unlink(frame);
                    self.forget(frame);
                    (frame, true)
                }
                None => return Pinned::Full,
            },
        };
        self.places[item as usize] = frame + 1;
        self.touched = self.touched.max(frame as usize + 1);
        self.frames[frame as usize] = Frame { item: Some(item), ..Frame::default() };
        self.use_once(frame);
        Pinned::New { frame, evicted }
    }

    /// What was pinned may go again.
    pub fn release(&mut self) {
        let pinned = std::mem::take(&mut self.pinned);
        for &frame in &pinned {
            // One that was given back meanwhile is pinned no more.
            if std::mem::take(&mut self.frames[frame as usize].pinned) {
                self.append(frame);
            }
        }
        self.pinned = pinned;
        self.pinned.clear();
    }

    /// Frees the frame of an item that is gone; true where it had one.
    pub fn give(&mut self, item: u32) -> bool {
        let Some(frame) = self.find(item) else {
            self.uses[item as usize] = 0;
            return false;
        };
        if !std::mem::take(&mut self.frames[frame as usize].pinned) {
            self.unlink(frame);
        }
        self.forget(frame);
        self.free.push(frame);
        self.uses[item as usize] = 0;
        true
    }

    fn use_once(&mut self, frame: u32) {
        self.frames[frame as usize].pinned = true;
        self.pinned.push(frame);
        if let (Eviction::Counter, Some(item)) = (self.eviction, self.frames[frame as usize].item) {
            let uses = &mut self.uses[item as usize];
            *uses += USE;
            if *uses >= MOST_USES {
                self.fade();
            }
        }
    }

    fn forget(&mut self, frame: u32) {
        if let Some(item) = self.frames[frame as usize].item.take() {
            self.places[item as usize] = 0;
        }
    }

    fn victim(&mut self) -> Option<u32> {
        match self.eviction {
            Eviction::Counter => self.lists.iter().find_map(|list| list.first),
            Eviction::Lru => self.lists[0].first,
            Eviction::Newest => self.lists[0].last,
            Eviction::Fifo => {
                let n = self.frames.len() as u32;
                let may_go = |&f: &u32| !self.frames[f as usize].pinned && self.frames[f as usize].item.is_some();
                let at = (0..n).map(|i| (self.hand + i) % n).find(may_go)?;
                self.hand = (at + 1) % n;
                Some(at)
            }
        }
    }

    fn list(&self, frame: u32) -> usize {
        self.frames[frame as usize].item.map_or(0, |item| usize::from(self.uses[item as usize]))
    }

    /// Puts a frame at the end of its list; where the newest go first, what was here before goes to the beginning.
    fn append(&mut self, frame: u32) {
        let list = self.list(frame);
        if self.eviction == Eviction::Newest && self.frames[frame as usize].found {
            let first = self.lists[list].first.replace(frame);
            let f = &mut self.frames[frame as usize];
            (f.before, f.after) = (None, first);
            match first {
                Some(first) => self.frames[first as usize].before = Some(frame),
                None => self.lists[list].last = Some(frame),
            }
            return;
        }
        let last = self.lists[list].last.replace(frame);
        let f = &mut self.frames[frame as usize];
        (f.before, f.after) = (last, None);
        match last {
            Some(last) => self.frames[last as usize].after = Some(frame),
            None => self.lists[list].first = Some(frame),
        }
    }

    fn unlink(&mut self, frame: u32) {
        let list = self.list(frame);
        let Frame { before, after, .. } = self.frames[frame as usize];
        match before {
            Some(before) => self.frames[before as usize].after = after,
            None => self.lists[list].first = after,
        }
        match after {
            Some(after) => self.frames[after as usize].before = before,
            None => self.lists[list].last = before,
        }
    }

    /// Leaves three quarters of all counters, keeping the order of those that become equal: fewer uses first.
    fn fade(&mut self) {
        let mut order = Vec::with_capacity(self.held());
        for list in std::mem::replace(&mut self.lists, [List::default(); LISTS]) {
            let mut at = list.first;
            while let Some(frame) = at {
                order.push(frame);
                at = self.frames[frame as usize].after;
            }
        }
        self.uses.iter_mut().for_each(|uses| *uses -= uses.div_ceil(4));
        for frame in order {
            self.append(frame);
        }
    }

    /// Panics where a frame is lost, listed twice, or not where its item says.
    pub fn check(&self) {
        let mut seen = vec![0u32; self.frames.len()];
        for (uses, list) in self.lists.iter().enumerate() {
            let (mut at, mut before) = (list.first, None);
            while let Some(frame) = at {
                let f = &self.frames[frame as usize];
                assert!(f.before == before && !f.pinned && f.item.is_some(), "frame {frame} is listed as it should be");
                assert!(self.list(frame) == uses, "frame {frame} is in the list of its uses");
                seen[frame as usize] += 1;
                (before, at) = (at, f.after);
            }
            assert_eq!(list.last, before, "the list ends where it says");
        }
        for &frame in &self.free {
            seen[frame as usize] += 1;
        }
        for (frame, f) in self.frames.iter().enumerate().filter(|(_, f)| f.pinned) {
            assert!(self.pinned.contains(&(frame as u32)) && f.item.is_some(), "frame {frame} will be released");
            seen[frame] += 1;
        }
        assert!(self.frames[self.touched..].iter().all(|f| f.item.is_none()), "what was not touched holds nothing");
        assert!(seen.iter().all(|&n| n == 1), "every frame is free, pinned or may go: {seen:?}");
        let placed = self.places.iter().enumerate().filter(|(_, place)| **place > 0);
        let mut count = 0;
        for (item, &place) in placed {
            assert_eq!(self.frames[place as usize - 1].item, Some(item as u32), "an item and its frame agree");
            count += 1;
        }
        assert_eq!(count, self.held(), "every frame that holds something has an item that knows it");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::rng::stream;
    use rand::Rng;
    use std::collections::HashMap;

    const ALL: [Eviction; 4] = [Eviction::Counter, Eviction::Fifo, Eviction::Lru, Eviction::Newest];

    /// Pins each item alone, one after the other; which of them were found.
    fn found(eviction: Eviction, frames: usize, items: &[u32]) -> Vec<bool> {
        let mut residency = Residency::new(100, frames, eviction);
        let pin = |&item: &u32| {
            let pinned = residency.pin(item);
            residency.release();
            residency.check();
            matches!(pinned, Pinned::Found(_))
        };
        items.iter().map(pin).collect()
    }

    #[test]
    fn each_order_keeps_what_it_says() {
        let check = |eviction, items: &[u32], expected: &[u8]| {
            let hits: Vec<u8> = found(eviction, 2, items).into_iter().map(u8::from).collect();
            assert_eq!(hits, expected, "{eviction:?} {items:?}");
        };
        // 2 and 3 push each other out until their uses count as much as those of 1, which goes then.
        check(Eviction::Counter, &[1, 1, 2, 3, 2, 3, 2, 2, 3, 2], &[0, 1, 0, 0, 0, 0, 1, 1, 1, 1]);
        // 1 is used twice, then 3 wants a frame.
        check(Eviction::Counter, &[1, 1, 2, 3, 1, 2], &[0, 1, 0, 0, 1, 0]);
        check(Eviction::Lru, &[1, 2, 1, 3, 1, 2], &[0, 0, 1, 0, 1, 0]);
        check(Eviction::Fifo, &[1, 2, 1, 3, 2, 1], &[0, 0, 1, 0, 1, 0]);
        // In turn: the oldest order keeps none, the newest keeps one.
        check(Eviction::Lru, &[1, 2, 3, 1, 2, 3, 1], &[0, 0, 0, 0, 0, 0, 0]);
        check(Eviction::Newest, &[1, 2, 3, 1, 2, 3, 1], &[0, 0, 0, 1, 0, 0, 1]);
    }

    #[test]
    fn saturated_counters_make_old_fame_fade() {
        let mut items = vec![1; 14];
        // 3 saturates some times, which leaves less of 1's count than 2 has; so 4 takes the frame of 1.
        items.extend([3; 40]);
        items.extend([2, 2, 2, 4, 2]);
        assert!(found(Eviction::Counter, 3, &items).pop().unwrap());
    }

    #[test]
    fn random_work_never_loses_a_frame_or_evicts_what_is_pinned() {
        for eviction in ALL {
            let mut random = stream(7, "residency", &[]);
            let mut residency = Residency::new(60, 9, eviction);
            let mut limit = 9;
            // What the frames hold, as whoever moves it keeps it.
            let mut contents = [0; 9];
            let mut pinned: HashMap<u32, u32> = HashMap::new();
            for _ in 0..4000 {
                let item = random.random_range(0..60);
                match random.random_range(0..12) {
                    0..7 => match residency.pin(item) {
                        Pinned::Found(frame) | Pinned::New { frame, .. } => {
                            pinned.insert(item, frame);
                            contents[frame as usize] = item;
                        }
                        Pinned::Full => assert!(pinned.len() >= limit),
                    },
                    7 => {
                        assert_eq!(residency.find(item).is_some(), residency.give(item));
                        pinned.remove(&item);
                    }
                    8 => {
                        limit = random.random_range(1..10);
                        residency.limit(limit);
                        assert!(residency.held() <= limit.max(pinned.len()));
                    }
                    9 => {
                        let frames = random.random_range(0..10);
                        let may = residency.pinned.is_empty() && residency.held() <= frames;
                        let before = residency.touched();
                        for (from, to) in residency.compact(frames) {
                            assert!(to < from && to < frames as u32);
                            contents[to as usize] = contents[from as usize];
                        }
                        assert_eq!(residency.touched(), if may { before.min(frames) } else { before });
                        // The lowest are taken first from now on.
                        assert!(!may || residency.free.is_sorted_by(|a, b| a > b) || before <= frames);
                    }
                    _ => {
                        residency.release();
                        pinned.clear();
                    }
                }
                for (&item, &frame) in &pinned {
                    assert_eq!(residency.find(item), Some(frame));
                }
                for item in 0..60 {
                    assert!(residency.find(item).is_none_or(|frame| contents[frame as usize] == item));
                }
                residency.check();
            }
        }
    }
}
