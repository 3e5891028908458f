//! Faulty file system as a FUSE mount, served by a thread of this process.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use fuser::{
    BackgroundSession, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags,
    Generation, INodeNo, LockOwner, MountOption, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate,
    ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite, Request, TimeOrNow,
    WriteFlags,
};
use rustix::mount::UnmountFlags;

use crate::disk::{Disk, Inode, ROOT};
use crate::faults::{Effect, Fault, Faults, Operation};

/// Time to live of kernel caches: nothing is cached past a cut.
const TTL: Duration = Duration::ZERO;

const UNMOUNT_LIMIT: Duration = Duration::from_secs(20);

/// A mounted disk.
#[derive(Debug)]
pub(crate) struct Mounted {
    folder: tempfile::TempDir,
    state: Shared,
    session: Option<BackgroundSession>,
}

#[derive(Debug, Clone)]
struct Shared(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    disk: Disk,
    faults: Faults,
    pace: Pace,
}

/// Calls of a slow disk, one after the other. A late wake-up does not make the next call late.
#[derive(Debug, Default)]
struct Pace {
    end: Option<Instant>,
}

impl Pace {
    /// Latest wake-up, also on a busy machine.
    const LATE_MAX: Duration = Duration::from_millis(50);

    fn wait(&mut self, time: Duration) {
        let now = Instant::now();
        let before = self.end.filter(|end| now.saturating_duration_since(*end) < Self::LATE_MAX);
        let end = before.unwrap_or(now) + time;
        std::thread::sleep(end.saturating_duration_since(now));
        self.end = Some(end);
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }
}

impl Mounted {
    pub(crate) fn new() -> Self {
        let state = State { disk: Disk::new(), faults: Faults::default(), pace: Pace::default() };
        let state = Shared(Arc::new(Mutex::new(state)));
        let mut mounted = Self { folder: tempfile::tempdir().unwrap(), state, session: None };
        mounted.mount();
        mounted
    }

    fn mount(&mut self) {
        let mut config = Config::default();
        config.mount_options = vec![MountOption::FSName("faulty".to_owned())];
        let session = fuser::spawn_mount(self.state.clone(), self.folder.path(), &config);
        self.session = Some(session.unwrap_or_else(|error| panic!("cannot mount: {error}")));
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn join(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    /// Replaces the fault that there is.
    pub(crate) fn set(&self, fault: Option<Fault>) {
        self.state.lock().faults.set(fault);
    }

    /// Changes since the fault was set.
    pub(crate) fn changes(&self) -> usize {
        self.state.lock().faults.changes()
    }

    /// Calls with an effect since the fault was set.
    pub(crate) fn hits(&self) -> usize {
        self.state.lock().faults.hits()
    }

    /// The last call that had an effect.
    pub(crate) fn last_hit(&self) -> Option<String> {
        self.state.lock().faults.last_hit().map(str::to_owned)
    }

    /// Restarts the machine: of the changes that were not synced, those that `survives` selects
    /// remain.
    pub(crate) fn cut_power(&mut self, survives: &mut dyn FnMut() -> bool) {
        self.set(None);
        self.unmount();
        self.state.lock().disk.cut_power(survives);
        self.mount();
    }

    /// Lets nobody have an answer until this is dropped. Processes that wait for one can be killed,
    /// as those of a network file system can: the only call that was taken in is one of this.
    #[cfg_attr(not(feature = "mpi"), allow(dead_code, reason = "runs hang, and need ranks"))]
    pub(crate) fn freeze(&self) -> Frozen<'_> {
        let state = self.state.lock();
        let path = self.join("no such file");
        std::thread::spawn(move || path.exists());
        std::thread::sleep(Duration::from_millis(200)); // until it was taken in
        Frozen { _state: state }
    }

    /// Waits for what still has a file open: another test's child has the files of this process
    /// between its fork and its exec.
    fn unmount(&mut self) {
        let Some(session) = self.session.take() else { return };
        let deadline = Instant::now() + UNMOUNT_LIMIT;
        while let Err(error) = rustix::mount::unmount(self.path(), UnmountFlags::empty()) {
            let is_over = error != rustix::io::Errno::BUSY || Instant::now() > deadline;
            assert!(!is_over, "cannot unmount: {error}");
            std::thread::sleep(Duration::from_millis(10));
        }
        session.join().unwrap();
    }
}

/// Disk that does not answer.
#[derive(Debug)]
pub(crate) struct Frozen<'a> {
    _state: MutexGuard<'a, State>,
}

impl State {
    fn name(&self, inode: Inode) -> OsString {
        self.disk.node(inode).map(|node| node.name.clone()).unwrap_or_default()
    }

    fn attributes(&self, inode: Inode) -> Option<FileAttr> {
        self.disk.node(inode)?;
        let size = self.disk.bytes(inode).map_or(0, <[u8]>::len) as u64;
        let is_folder = self.disk.bytes(inode).is_none();
        Some(FileAttr {
            ino: INodeNo(inode),
            size,
            blocks: size.div_ceil(512),
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind: if is_folder { FileType::Directory } else { FileType::RegularFile },
            perm: if is_folder { 0o755 } else { 0o644 },
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        })
    }
}

/// Returns from the caller if a fault concerns the call, after the reply to it.
macro_rules! unless_faulty {
    ($state:ident, $reply:ident, $operation:ident, $name:expr) => {
        let name: OsString = $name.into();
        match $state.faults.of(Operation::$operation, &name) {
            None => {}
            Some(Effect::Error(errno)) => return $reply.error(errno),
            Some(Effect::Slow(time)) => $state.pace.wait(time),
            Some(Effect::Hang(time)) => {
                std::thread::spawn(move || {
                    std::thread::sleep(time);
                    $reply.error(Errno::EIO);
                });
                return;
            }
        }
    };
}

impl Filesystem for Shared {
    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let state = self.lock();
        let inode = state.disk.find(parent.0, name);
        match inode.and_then(|inode| state.attributes(inode)) {
            Some(attributes) => reply.entry(&TTL, &attributes, Generation(0)),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, inode: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.lock().attributes(inode.0) {
            Some(attributes) => reply.attr(&TTL, &attributes),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn setattr(
        &self,
        _: &Request,
        inode: INodeNo,
        _mode: Option<u32>,
        _uid: Option<u32>,
        _gid: Option<u32>,
        size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _handle: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<fuser::BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let mut state = self.lock();
        if let Some(size) = size {
            unless_faulty!(state, reply, Write, state.name(inode.0));
            state.disk.resize(inode.0, size as usize);
        }
        match state.attributes(inode.0) {
            Some(attributes) => reply.attr(&TTL, &attributes),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn mkdir(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        _mode: u32,
        _umask: u32,
        reply: ReplyEntry,
    ) {
        let mut state = self.lock();
        unless_faulty!(state, reply, CreateFolder, name);
        if state.disk.find(parent.0, name).is_some() {
            return reply.error(Errno::EEXIST);
        }
        let inode = state.disk.create(parent.0, name, true);
        let attributes = state.attributes(inode).unwrap();
        reply.entry(&TTL, &attributes, Generation(0));
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let mut state = self.lock();
        unless_faulty!(state, reply, Remove, name);
        state.disk.remove(parent.0, name);
        reply.ok();
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let mut state = self.lock();
        unless_faulty!(state, reply, Remove, name);
        let inode = state.disk.find(parent.0, name);
        let names = inode.and_then(|inode| state.disk.names(inode));
        if names.is_some_and(|names| !names.is_empty()) {
            return reply.error(Errno::ENOTEMPTY);
        }
        state.disk.remove(parent.0, name);
        reply.ok();
    }

    fn rename(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let mut state = self.lock();
        unless_faulty!(state, reply, Rename, new_name);
        if parent != new_parent || !flags.is_empty() {
            return reply.error(Errno::EINVAL);
        }
        match state.disk.rename(parent.0, name, new_name) {
            Some(()) => reply.ok(),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn link(&self, _: &Request, inode: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let mut state = self.lock();
        unless_faulty!(state, reply, Link, name);
        if state.disk.find(parent.0, name).is_some() {
            return reply.error(Errno::EEXIST);
        }
        state.disk.link(inode.0, parent.0, name);
        let attributes = state.attributes(inode.0).unwrap();
        reply.entry(&TTL, &attributes, Generation(0));
    }

    fn create(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        _mode: u32,
        _umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let mut state = self.lock();
        unless_faulty!(state, reply, Create, name);
        let found = state.disk.find(parent.0, name);
        if found.is_some() && flags & libc::O_EXCL != 0 {
            return reply.error(Errno::EEXIST);
        }
        let inode = found.unwrap_or_else(|| state.disk.create(parent.0, name, false));
        let attributes = state.attributes(inode).unwrap();
        reply.created(&TTL, &attributes, Generation(0), FileHandle(0), FopenFlags::empty());
    }

    fn open(&self, _: &Request, inode: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        let mut state = self.lock();
        unless_faulty!(state, reply, Open, state.name(inode.0));
        reply.opened(FileHandle(0), FopenFlags::empty());
    }

    fn read(
        &self,
        _: &Request,
        inode: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let mut state = self.lock();
        unless_faulty!(state, reply, Read, state.name(inode.0));
        let bytes = state.disk.bytes(inode.0).unwrap_or_default();
        let start = bytes.len().min(offset as usize);
        let end = bytes.len().min(start + size as usize);
        reply.data(&bytes[start..end]);
    }

    fn write(
        &self,
        _: &Request,
        inode: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let mut state = self.lock();
        unless_faulty!(state, reply, Write, state.name(inode.0));
        state.disk.write(inode.0, offset as usize, data);
        reply.written(data.len() as u32);
    }

    fn flush(&self, _: &Request, inode: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        let mut state = self.lock();
        unless_faulty!(state, reply, Close, state.name(inode.0));
        reply.ok();
    }

    fn fsync(&self, _: &Request, inode: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        let mut state = self.lock();
        unless_faulty!(state, reply, Sync, state.name(inode.0));
        state.disk.sync(inode.0);
        reply.ok();
    }

    fn fsyncdir(&self, _: &Request, inode: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        let mut state = self.lock();
        unless_faulty!(state, reply, SyncFolder, state.name(inode.0));
        state.disk.sync(inode.0);
        reply.ok();
    }

    fn readdir(
        &self,
        _: &Request,
        inode: INodeNo,
        _: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let mut state = self.lock();
        unless_faulty!(state, reply, List, state.name(inode.0));
        let Some(names) = state.disk.names(inode.0) else { return reply.error(Errno::ENOTDIR) };
        let mut entries = vec![(OsString::from("."), inode.0), (OsString::from(".."), ROOT)];
        entries.extend(names.iter().map(|(name, inode)| (name.clone(), *inode)));
        for (number, (name, inode)) in entries.into_iter().enumerate().skip(offset as usize) {
            let is_file = state.disk.bytes(inode).is_some();
            let kind = if is_file { FileType::RegularFile } else { FileType::Directory };
            if reply.add(INodeNo(inode), number as u64 + 1, kind, name) {
                break;
            }
        }
        reply.ok();
    }
}
