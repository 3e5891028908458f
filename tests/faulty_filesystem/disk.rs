//! Disk with a volatile cache: changes that were not synced may be lost when the power is cut.
//!
//! It promises what POSIX promises, and no more: fsync of a file keeps its content, fsync of a
//! folder the names in it. Each other change survives or is lost on its own, whatever the order in
//! which they were made.

use std::collections::{BTreeMap, HashMap};
use std::ffi::{OsStr, OsString};

/// Number of a file or folder.
pub(crate) type Inode = u64;

/// Root folder.
pub(crate) const ROOT: Inode = 1;

/// All files and folders. Those without a name stay, as an open file does.
#[derive(Debug)]
pub(crate) struct Disk {
    nodes: HashMap<Inode, Node>,
}

/// A file or a folder.
#[derive(Debug)]
pub(crate) struct Node {
    /// The last name that it was given, for messages and faults.
    pub(crate) name: OsString,
    content: Content,
}

#[derive(Debug)]
enum Content {
    File(Cached<Vec<u8>, Write>),
    Folder(Cached<BTreeMap<OsString, Inode>, Naming>),
}

/// A state as programs see it, and what of it is durable.
#[derive(Debug)]
struct Cached<S, C> {
    now: S,
    durable: S,
    /// Changes from `durable` to `now`.
    changes: Vec<C>,
}

trait Change<S> {
    fn apply(&self, state: &mut S);
}

#[derive(Debug)]
enum Write {
    Bytes { offset: usize, bytes: Vec<u8> },
    Resize(usize),
}

#[derive(Debug)]
enum Naming {
    Add(OsString, Inode),
    Remove(OsString),
    /// Rename of which both names survive or neither.
    Rename(OsString, OsString, Inode),
}

impl Change<Vec<u8>> for Write {
    fn apply(&self, data: &mut Vec<u8>) {
        match self {
            Self::Resize(size) => data.resize(*size, 0),
            Self::Bytes { offset, bytes } => {
                let end = offset + bytes.len();
                data.resize(data.len().max(end), 0);
                data[*offset..end].copy_from_slice(bytes);
            }
        }
    }
}

impl Change<BTreeMap<OsString, Inode>> for Naming {
    fn apply(&self, names: &mut BTreeMap<OsString, Inode>) {
        match self {
            Self::Add(name, inode) => drop(names.insert(name.clone(), *inode)),
            Self::Remove(name) => drop(names.remove(name)),
            Self::Rename(from, to, inode) => {
                names.remove(from);
                names.insert(to.clone(), *inode);
            }
        }
    }
}

impl<S: Clone + Default, C: Change<S>> Cached<S, C> {
    fn new() -> Self {
        Self { now: S::default(), durable: S::default(), changes: Vec::new() }
    }

    fn change(&mut self, change: C) {
        change.apply(&mut self.now);
        self.changes.push(change);
    }

    fn sync(&mut self) {
        self.durable = self.now.clone();
        self.changes.clear();
    }

    fn cut_power(&mut self, survives: &mut dyn FnMut() -> bool) {
        for change in self.changes.drain(..).filter(|_| survives()) {
            change.apply(&mut self.durable);
        }
        self.now = self.durable.clone();
    }
}

impl Disk {
    pub(crate) fn new() -> Self {
        let root = Node { name: OsString::new(), content: Content::Folder(Cached::new()) };
        Self { nodes: HashMap::from([(ROOT, root)]) }
    }

    pub(crate) fn node(&self, inode: Inode) -> Option<&Node> {
        self.nodes.get(&inode)
    }

    /// Finds an entry of a folder by its name.
    pub(crate) fn find(&self, folder: Inode, name: &OsStr) -> Option<Inode> {
        self.names(folder)?.get(name).copied()
    }

    /// The names in a folder; `None` if it is a file.
    pub(crate) fn names(&self, folder: Inode) -> Option<&BTreeMap<OsString, Inode>> {
        match &self.nodes.get(&folder)?.content {
            Content::Folder(names) => Some(&names.now),
            Content::File(_) => None,
        }
    }

    /// The bytes of a file; `None` if it is a folder.
    pub(crate) fn bytes(&self, file: Inode) -> Option<&[u8]> {
        match &self.nodes.get(&file)?.content {
            Content::File(data) => Some(&data.now),
            Content::Folder(_) => None,
        }
    }

    /// Creates a file or folder of a name that is free.
    pub(crate) fn create(&mut self, folder: Inode, name: &OsStr, is_folder: bool) -> Inode {
        let inode = ROOT + self.nodes.len() as Inode;
        let content = match is_folder {
            true => Content::Folder(Cached::new()),
            false => Content::File(Cached::new()),
        };
        self.nodes.insert(inode, Node { name: name.to_owned(), content });
        self.rename_to(inode, name, folder, Naming::Add(name.to_owned(), inode));
        inode
    }

    /// Gives a file one more name.
    pub(crate) fn link(&mut self, file: Inode, folder: Inode, name: &OsStr) {
        self.rename_to(file, name, folder, Naming::Add(name.to_owned(), file));
    }

    pub(crate) fn rename(&mut self, folder: Inode, from: &OsStr, to: &OsStr) -> Option<()> {
        let inode = self.find(folder, from)?;
        let naming = Naming::Rename(from.to_owned(), to.to_owned(), inode);
        self.rename_to(inode, to, folder, naming);
        Some(())
    }

    pub(crate) fn remove(&mut self, folder: Inode, name: &OsStr) {
        if let Some(Content::Folder(names)) = self.content(folder) {
            names.change(Naming::Remove(name.to_owned()));
        }
    }

    fn rename_to(&mut self, inode: Inode, name: &OsStr, folder: Inode, naming: Naming) {
        if let Some(node) = self.nodes.get_mut(&inode) {
            node.name = name.to_owned();
        }
        if let Some(Content::Folder(names)) = self.content(folder) {
            names.change(naming);
        }
    }

    pub(crate) fn write(&mut self, file: Inode, offset: usize, bytes: &[u8]) {
        if let Some(Content::File(data)) = self.content(file) {
            data.change(Write::Bytes { offset, bytes: bytes.to_owned() });
        }
    }

    pub(crate) fn resize(&mut self, file: Inode, size: usize) {
        if let Some(Content::File(data)) = self.content(file) {
            data.change(Write::Resize(size));
        }
    }

    /// fsync.
    pub(crate) fn sync(&mut self, inode: Inode) {
        match self.content(inode) {
            Some(Content::File(data)) => data.sync(),
            Some(Content::Folder(names)) => names.sync(),
            None => {}
        }
    }

    /// Keeps durable changes, and those other changes for which `survives` returns true.
    pub(crate) fn cut_power(&mut self, survives: &mut dyn FnMut() -> bool) {
        let mut inodes: Vec<_> = self.nodes.keys().copied().collect();
        inodes.sort_unstable(); // the same numbers for the same changes each time
        for inode in inodes {
            match self.content(inode) {
                Some(Content::File(data)) => data.cut_power(survives),
                Some(Content::Folder(names)) => names.cut_power(survives),
                None => {}
            }
        }
    }

    fn content(&mut self, inode: Inode) -> Option<&mut Content> {
        self.nodes.get_mut(&inode).map(|node| &mut node.content)
    }
}

#[test]
fn only_what_was_synced_is_promised() {
    let mut disk = Disk::new();
    let [synced, written, unnamed] = ["synced", "written", "unnamed"].map(OsStr::new);
    for name in [synced, written] {
        let file = disk.create(ROOT, name, false);
        disk.write(file, 0, b"old");
        disk.sync(file);
    }
    disk.sync(ROOT);
    let file = disk.find(ROOT, written).unwrap();
    disk.write(file, 1, b"new");
    let file = disk.create(ROOT, unnamed, false);
    disk.sync(file);
    disk.rename(ROOT, synced, OsStr::new("renamed")).unwrap();
    disk.cut_power(&mut || false);
    let content = |name| disk.bytes(disk.find(ROOT, name)?);
    assert_eq!([synced, written].map(content), [Some(&b"old"[..]); 2]);
    assert_eq!([unnamed, OsStr::new("renamed")].map(content), [None; 2]);
}
