//! Slots for commands that compute: four for each core, shared by all tests that run at the same
//! time, in this process or in others. Many tests can then wait while few compute.

use std::fs::File;
use std::sync::Mutex;
use std::thread::{ThreadId, available_parallelism, current, sleep};
use std::time::{Duration, Instant};

/// Slots of one command, each a locked file: the kernel releases those of a process that died.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    files: Vec<File>,
    holder: Option<ThreadId>,
}

/// Threads that hold slots.
static HOLDERS: Mutex<Vec<ThreadId>> = Mutex::new(Vec::new());

/// Half of a short run is start and end, in which ranks wait for each other.
const SLOTS_PER_CORE: usize = 4;

const INTERVAL: Duration = Duration::from_millis(5);

/// Longer than any command may take.
const TIMEOUT: Duration = Duration::from_secs(900);

impl Slots {
    /// Waits for a slot for each rank, or for all slots if there are fewer. A thread that holds
    /// slots gets no more: two such threads might wait for each other.
    pub(crate) fn acquire(ranks: usize) -> Self {
        let holder = current().id();
        if ranks == 0 || HOLDERS.lock().unwrap().contains(&holder) {
            return Self::default();
        }
        let all = SLOTS_PER_CORE * available_parallelism().unwrap().get();
        // One command after another acquires its slots, so that none waits with a part of them.
        let turn = file("turn");
        turn.lock().unwrap();
        let mut files = Vec::new();
        let wanted = ranks.min(all);
        let start = Instant::now();
        loop {
            let slots = (0..all).map(|number| file(&number.to_string()));
            let free = slots.filter(|slot| slot.try_lock().is_ok());
            files.extend(free.take(wanted - files.len()));
            if files.len() == wanted {
                break;
            }
            assert!(start.elapsed() < TIMEOUT, "no slots for {ranks} ranks: who holds them?");
            sleep(INTERVAL);
        }
        HOLDERS.lock().unwrap().push(holder);
        Self { files, holder: Some(holder) }
    }
}

impl Drop for Slots {
    fn drop(&mut self) {
        self.files.clear();
        HOLDERS.lock().unwrap().retain(|holder| Some(*holder) != self.holder);
    }
}

/// Opens a file beside this program.
fn file(name: &str) -> File {
    let folder = std::env::current_exe().unwrap().with_file_name("slots");
    std::fs::create_dir_all(&folder).unwrap();
    File::options().create(true).append(true).open(folder.join(name)).unwrap()
}
