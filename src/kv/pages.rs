//! The pages of the arena: who owns them and which of them a live path needs. Numbers only; what a page holds is the
//! device's business.
//!
//! A page is *free* (no owner), *live* (some owner needs it for a live path) or *cached* (owned, needed by no live path:
//! the next request may find it, and eviction may take it). `free + live + cached = all`, always.

use super::PageId;

#[derive(Debug, Clone)]
pub struct Pages {
    /// Segments that own each page. Only segments of one path share a page: the two halves of a split in mid-page.
    owners: Vec<u32>,
    /// Owners that need the page for a live path.
    live: Vec<u32>,
    /// Free pages; the last one is taken next.
    free: Vec<PageId>,
    live_pages: usize,
    /// Pages that lost their last owner, where somebody wants to know.
    freed: Option<Vec<PageId>>,
}

impl Pages {
    pub fn new(pages: usize) -> Self {
        let pages = u32::try_from(pages).unwrap_or(u32::MAX);
        Self {
            owners: vec![0; pages as usize],
            live: vec![0; pages as usize],
            free: (0..pages).rev().map(PageId).collect(),
            live_pages: 0,
            freed: None,
        }
    }

    pub fn len(&self) -> usize {
        self.owners.len()
    }

    pub fn is_empty(&self) -> bool {
        self.owners.is_empty()
    }

    pub fn free_pages(&self) -> usize {
        self.free.len()
    }

    pub fn live_pages(&self) -> usize {
        self.live_pages
    }

    pub fn cached_pages(&self) -> usize {
        self.len() - self.free.len() - self.live_pages
    }

    /// A free page with one owner.
    pub fn take(&mut self) -> Option<PageId> {
        let page = self.free.pop()?;
        self.owners[page.0 as usize] = 1;
        Some(page)
    }

    /// One more owner of a page that has one.
    pub fn share(&mut self, page: PageId) {
        let owners = &mut self.owners[page.0 as usize];
        assert!(*owners > 0, "page {} is shared while it has no owner", page.0);
        *owners += 1;
    }

    /// One owner fewer; the last one frees the page.
    pub fn give(&mut self, page: PageId) {
        let owners = &mut self.owners[page.0 as usize];
        assert!(*owners > 0, "page {} is given back while it has no owner", page.0);
        *owners -= 1;
        if *owners == 0 {
            assert!(self.live[page.0 as usize] == 0, "page {} is given back while a live path needs it", page.0);
            self.free.push(page);
            if let Some(freed) = &mut self.freed {
                freed.push(page);
            }
        }
    }

    /// Notes from now on which pages become free.
    pub fn log_freed(&mut self) {
        self.freed = Some(Vec::new());
    }

    /// Pages that became free since this was asked last; some may have an owner again.
    pub fn take_freed(&mut self) -> Vec<PageId> {
        self.freed.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// One more owner needs the page for a live path.
    pub fn need(&mut self, page: PageId) {
        let live = &mut self.live[page.0 as usize];
        *live += 1;
        self.live_pages += usize::from(*live == 1);
    }

    /// One such owner fewer.
    pub fn spare(&mut self, page: PageId) {
        let live = &mut self.live[page.0 as usize];
        assert!(*live > 0, "page {} is spared while no live path needs it", page.0);
        *live -= 1;
        self.live_pages -= usize::from(*live == 0);
    }

    /// Panics unless the counts are exactly `owners` and `live` (one entry a page) and the free list is what has no owner.
    pub fn check(&self, owners: &[u32], live: &[u32]) {
        assert_eq!(self.owners, owners, "owners of the pages");
        assert_eq!(self.live, live, "live owners of the pages");
        assert_eq!(self.live_pages, live.iter().filter(|&&n| n > 0).count(), "live pages");
        let mut free = vec![false; self.len()];
        for page in &self.free {
            assert!(!std::mem::replace(&mut free[page.0 as usize], true), "page {} is free twice", page.0);
        }
        for (page, &owners) in owners.iter().enumerate() {
            assert_eq!(free[page], owners == 0, "page {page} is free exactly if it has no owner");
        }
        assert_eq!(self.free_pages() + self.live_pages() + self.cached_pages(), self.len());
    }
}
