//! The folder of this program's caches.

use std::ffi::OsString;
use std::path::PathBuf;

/// Folder of a kind of files in `YARDSTICK_CACHE_DIR`, or else in `yardstick` in the user's folder
/// for caches; `None` without a home.
pub fn cache_folder(kind: &str) -> Option<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    Some(base(&variable)?.join(kind))
}

fn base(variable: &dyn Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let path = |name| variable(name).map(PathBuf::from);
    let own = || path("YARDSTICK_CACHE_DIR");
    let user = || path("XDG_CACHE_HOME").or_else(|| Some(path("HOME")?.join(".cache")));
    own().or_else(|| Some(user()?.join("yardstick")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folder_is_the_one_that_was_named_or_the_user_s() {
        let folder_with = |variables: &[(&str, &str)]| {
            base(&|name| {
                let (_, value) = variables.iter().find(|(known, _)| *known == name)?;
                Some(value.into())
            })
        };
        let home = ("HOME", "/h");
        assert_eq!(folder_with(&[home]), Some("/h/.cache/yardstick".into()));
        let user = ("XDG_CACHE_HOME", "/x");
        assert_eq!(folder_with(&[home, user]), Some("/x/yardstick".into()));
        let own = ("YARDSTICK_CACHE_DIR", "/y");
        assert_eq!(folder_with(&[home, user, own]), Some("/y".into()));
        assert_eq!(folder_with(&[]), None);
    }
}
