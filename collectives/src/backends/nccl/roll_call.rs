//! Detection of lost peers, which NCCL cannot do.
#![allow(unsafe_code)] // lends leaked memory

use std::time::{Duration, Instant};

use crate::{Channel, Collective, OUTSTANDING_MAX, Operation, RawBuffer, Ticket};

/// Time for peers to notice the same failure. Those that wait for the same operation, with the same
/// timeout, begin to wait at about the same time.
const GRACE: Duration = Duration::from_secs(3);

/// Exchanges a message with every peer over the host's backend, after an operation has failed, and
/// returns those that do not answer. Empty where there are too many to ask, and where the host's
/// backend is dead.
///
/// A peer that computes for much longer than this rank has not noticed the failure yet, and does
/// not answer either. Nor does one that began to wait later, as ranks in two dimensions do: if a
/// rank hangs in forward, its shard group waits for weights, and other shard groups only for its
/// sums. So this is what is known without the positions of the ranks, which a run has.
pub(super) fn silent_peers(control: &dyn Collective) -> Vec<usize> {
    let peers: Vec<_> = (0..control.world()).filter(|&peer| peer != control.rank()).collect();
    if 2 * peers.len() >= OUTSTANDING_MAX {
        return Vec::new();
    }
    let tag = Operation::TAG_MAX;
    let answers: Vec<_> = peers
        .iter()
        .map(|&peer| {
            let answer = start(control, Operation::Receive { from: peer, tag });
            // Not waited for: the peer's answer is as good as the receipt.
            let _sent = start(control, Operation::Send { to: peer, tag });
            answer
        })
        .collect();
    let Some(answers) = answers.into_iter().collect::<Option<Vec<Ticket>>>() else {
        return Vec::new();
    };
    let deadline = Instant::now() + GRACE;
    let answered = answers.into_iter().map(|ticket| control.wait(ticket, deadline).is_ok());
    let silent = peers.into_iter().zip(answered).filter(|(_, answered)| !answered);
    silent.map(|(peer, _)| peer).collect()
}

/// Starts a message of one byte, whose memory is never freed: the process is about to end, and the
/// network may still write to it.
fn start(control: &dyn Collective, operation: Operation) -> Option<Ticket> {
    let byte: &'static mut [u8] = Box::leak(Box::new([0]));
    // SAFETY: the byte is valid for ever and used by nobody else.
    unsafe { control.submit(Channel::Control, operation, RawBuffer::of(byte)) }.ok()
}
