//! The arena as numbers: free, live and cached pages, with reference counts.
