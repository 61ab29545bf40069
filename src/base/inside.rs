//! Files that the program makes in a folder that the user chose: a link that was put there must not lead its writing
//! somewhere else. Folders of results come from other people too.

use super::text::sanitize_line;
use super::{Error, Result};
use std::path::{Path, PathBuf};

/// The path of `name` in `folder`, for writing. The folder itself may be a link: that is where the user wants it.
///
/// # Errors
/// There is a link of that name which leads out of the folder, or nowhere. One to a device (a full disk is tested so) keeps
/// nothing and is let through.
pub fn inside(folder: &Path, name: &str) -> Result<PathBuf> {
    let path = folder.join(name);
    if !path.symlink_metadata().is_ok_and(|meta| meta.is_symlink()) {
        return Ok(path);
    }
    let leads_inside = || {
        let (root, real) = (folder.canonicalize().ok()?, path.canonicalize().ok()?);
        let meta = real.metadata().ok()?;
        Some(real.starts_with(root) || !(meta.is_file() || meta.is_dir()))
    };
    if leads_inside() == Some(true) {
        return Ok(path);
    }
    let shown = sanitize_line(&path.display().to_string());
    Err(Error::fault(format!("{shown} is a link that leads out of its folder, and is not written through: remove it")))
}

#[cfg(test)]
mod tests {
    use super::inside;
    use std::os::unix::fs::symlink;

    #[test]
    fn links_that_lead_out_are_refused() {
        let place = tempfile::tempdir().unwrap();
        let (folder, other) = (place.path().join("out"), place.path().join("other"));
        for dir in [&folder, &other] {
            std::fs::create_dir(dir).unwrap();
        }
        std::fs::write(other.join("theirs"), "x").unwrap();
        std::fs::write(folder.join("own"), "x").unwrap();
        let check = |name: &str, target: &std::path::Path, right: bool| {
            symlink(target, folder.join(name)).unwrap();
            let found = inside(&folder, name);
            assert_eq!(found.is_ok(), right, "{name}: {found:?}");
            if let Err(e) = found {
                assert!(e.message().contains(name) && e.message().contains("remove it"), "{e}");
            }
        };
        check("file", &other.join("theirs"), false);
        check("folder", &other, false);
        check("nowhere", &other.join("none"), false);
        check("up", std::path::Path::new("../other/theirs"), false);
        check("root", std::path::Path::new("/"), false);
        check("beside", &folder.join("own"), true);
        check("chain", &folder.join("file"), false);
        check("device", std::path::Path::new("/dev/full"), true);
        assert_eq!(inside(&folder, "new").unwrap(), folder.join("new"));
        // The folder the user names may be a link itself.
        symlink(&folder, place.path().join("alias")).unwrap();
        assert!(inside(&place.path().join("alias"), "own").is_ok());
        assert!(inside(&place.path().join("alias"), "beside").is_ok());
    }
}
