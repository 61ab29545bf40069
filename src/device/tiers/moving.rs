//! How much of each page crosses the link in the present step: what is brought, and what leaves with a paused branch.
//! New K/V, which is written through to the host tier in every step, is not among it: it stays where it was made.

/// Counted in rows (K and V of one token and K/V head of one layer).
#[derive(Debug, Clone)]
pub struct Moving {
    rows: Vec<u32>,
    /// Pages that `rows` is not 0 of.
    pages: Vec<u32>,
    page_rows: u32,
}

impl Moving {
    /// `page_rows`: rows of a page over all layers.
    pub fn new(pages: usize, page_rows: usize) -> Self {
        let page_rows = u32::try_from(page_rows).unwrap_or(u32::MAX);
        Self { rows: vec![0; pages], pages: Vec::new(), page_rows }
    }

    /// A new step begins. O(pages that moved in the last one).
    pub fn begin(&mut self) {
        for page in self.pages.drain(..) {
            self.rows[page as usize] = 0;
        }
    }

    pub fn add(&mut self, page: usize, rows: usize) {
        if rows == 0 {
            return;
        }
        let moved = &mut self.rows[page];
        if *moved == 0 {
            self.pages.push(page as u32);
        }
        // What crosses twice in a step is no more than the whole of it.
        *moved = moved.saturating_add(u32::try_from(rows).unwrap_or(u32::MAX)).min(self.page_rows);
    }

    /// Of each page the share that moves.
    pub fn shares(&self) -> Vec<f32> {
        self.rows.iter().map(|&rows| rows as f32 / self.page_rows.max(1) as f32).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_counts_its_own_moves_and_no_page_more_than_once() {
        let mut moving = Moving::new(3, 8);
        moving.add(1, 4);
        moving.add(2, 0);
        assert_eq!(moving.shares(), [0.0, 0.5, 0.0]);
        moving.add(1, 6);
        moving.add(0, 2);
        assert_eq!(moving.shares(), [0.25, 1.0, 0.0]);
        moving.begin();
        assert_eq!(moving.shares(), [0.0; 3]);
    }
}
