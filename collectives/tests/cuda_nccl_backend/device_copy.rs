//! Carries out operations on buffers of the host in the memory of a device, so that the contract's
//! suite, which has buffers of the host, tests the backend of devices.
#![allow(unsafe_code)]

use std::collections::HashMap;
use std::fmt::Debug;
use std::ptr::NonNull;
use std::slice;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use device::cuda::Cuda;
use device::{Allocator, DeviceBuffer};
use half::bf16;
use yardstick_collectives::{
    Channel, Collective, Dimensions, Dtype, Element, Error, GridPlan, GroupPlan, Message,
    Operation, RawBuffer, Ticket, Timing,
};

/// The channels whose operations are carried out on the device. Ranks may start operations of
/// different channels in different orders, but NCCL has only one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Channels {
    Data,
    Both,
}

/// A rank that copies buffers to its device and back.
#[derive(Debug)]
pub(crate) struct OnDevice {
    nccl: Arc<dyn Collective>,
    device: Cuda,
    channels: Channels,
    /// Copies in flight, by the text of their tickets.
    in_flight: Mutex<HashMap<String, Vec<Box<dyn Copied>>>>,
    /// Shared with the groups.
    used_device: Arc<AtomicBool>,
}

impl OnDevice {
    pub(crate) fn new(nccl: Arc<dyn Collective>, device: &Cuda, channels: Channels) -> Self {
        let in_flight = Mutex::default();
        Self { nccl, device: device.clone(), channels, in_flight, used_device: Arc::default() }
    }

    fn beside(&self, nccl: Box<dyn Collective>) -> Box<dyn Collective> {
        let used_device = self.used_device.clone();
        let group = Self::new(nccl.into(), &self.device, self.channels);
        Box::new(Self { used_device, ..group })
    }

    /// Returns whether any operation was carried out on the device.
    pub(crate) fn used_device(&self) -> bool {
        self.used_device.load(Ordering::Relaxed)
    }

    fn is_for_device(&self, channel: Channel, operation: Operation, dtype: Dtype) -> bool {
        let is_for_nccl = match operation {
            Operation::AllReduceSum | Operation::ReduceScatterSum => dtype != Dtype::U8,
            Operation::AllGather | Operation::Broadcast { .. } => true,
            // A grid's ranks have no communicator of all.
            Operation::Send { .. } | Operation::Receive { .. } => {
                self.nccl.dimensions().outer.is_none()
            }
            Operation::Barrier | Operation::Messages => false,
        };
        is_for_nccl && (channel == Channel::Data || self.channels == Channels::Both)
    }

    /// # Safety
    /// The buffer is valid until the copy is dropped, and nobody else uses it.
    unsafe fn copy(&self, buffer: RawBuffer) -> Box<dyn Copied> {
        // SAFETY: the caller's promise.
        unsafe {
            match buffer.dtype() {
                Dtype::U8 => Box::new(Copy::<u8>::of(buffer, &self.device)),
                Dtype::Bf16 => Box::new(Copy::<bf16>::of(buffer, &self.device)),
                Dtype::F32 => Box::new(Copy::<f32>::of(buffer, &self.device)),
                Dtype::F64 => Box::new(Copy::<f64>::of(buffer, &self.device)),
            }
        }
    }
}

/// A buffer of the host and its copy on a device.
trait Copied: Debug + Send {
    /// The copy.
    fn raw(&mut self) -> RawBuffer;

    /// Copies what the device has back to the host.
    fn copy_back(&mut self, device: &Cuda);
}

#[derive(Debug)]
struct Copy<E: Element> {
    host: NonNull<E>,
    on_device: DeviceBuffer<E>,
}

// SAFETY: the buffer of the host is lent to it.
unsafe impl<E: Element> Send for Copy<E> {}

impl<E: Element> Copy<E> {
    /// # Safety
    /// The buffer is valid until this is dropped, and nobody else uses it.
    unsafe fn of(buffer: RawBuffer, device: &Cuda) -> Self {
        let on_device = Allocator::cuda(device).zeros(buffer.len());
        let mut copy = Self { host: buffer.start().cast(), on_device };
        let host = copy.host();
        device.write(copy.on_device.view_mut(), host).unwrap();
        copy
    }

    fn host<'any>(&self) -> &'any mut [E] {
        // SAFETY: promised in `of`.
        unsafe { slice::from_raw_parts_mut(self.host.as_ptr(), self.on_device.len()) }
    }
}

impl<E: Element> Copied for Copy<E> {
    fn raw(&mut self) -> RawBuffer {
        RawBuffer::of(self.on_device.view_mut())
    }

    fn copy_back(&mut self, device: &Cuda) {
        device.read(self.on_device.view(), self.host()).unwrap();
    }
}

// SAFETY: operations are forwarded; a copy lives in the table until its operation is over.
unsafe impl Collective for OnDevice {
    fn rank(&self) -> usize {
        self.nccl.rank()
    }

    fn world(&self) -> usize {
        self.nccl.world()
    }

    fn dimensions(&self) -> Dimensions {
        self.nccl.dimensions()
    }

    fn subgroup(&self, plan: &GroupPlan) -> Result<Box<dyn Collective>, Error> {
        Ok(self.beside(self.nccl.subgroup(plan)?))
    }

    fn grid(&self, plan: &GridPlan) -> Result<Box<dyn Collective>, Error> {
        Ok(self.beside(self.nccl.grid(plan)?))
    }

    fn group(&self) -> Option<Arc<GroupPlan>> {
        self.nccl.group()
    }

    fn backend(&self) -> &'static str {
        self.nccl.backend()
    }

    fn timeout(&self) -> Duration {
        self.nccl.timeout()
    }

    unsafe fn submit(
        &self,
        channel: Channel,
        operation: Operation,
        buffer: RawBuffer,
    ) -> Result<Ticket, Error> {
        if !self.is_for_device(channel, operation, buffer.dtype()) {
            // SAFETY: the caller's promise.
            return unsafe { self.nccl.submit(channel, operation, buffer) };
        }
        self.used_device.store(true, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        let mut copied = unsafe { self.copy(buffer) };
        // SAFETY: the copy lives until the ticket was waited for, and is used by nobody meanwhile.
        let ticket = unsafe { self.nccl.submit(Channel::Data, operation, copied.raw()) }?;
        self.in_flight.lock().unwrap().insert(format!("{ticket:?}"), vec![copied]);
        Ok(ticket)
    }

    unsafe fn submit_group(&self, channel: Channel, messages: &[Message]) -> Result<Ticket, Error> {
        let is_for_device = |&Message { operation, buffer }: &Message| {
            self.is_for_device(channel, operation, buffer.dtype())
        };
        if messages.is_empty() || !messages.iter().all(is_for_device) {
            // SAFETY: the caller's promise.
            return unsafe { self.nccl.submit_group(channel, messages) };
        }
        self.used_device.store(true, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        let copy = |message: &Message| unsafe { self.copy(message.buffer) };
        let mut copies: Vec<_> = messages.iter().map(copy).collect();
        let on_device = messages.iter().zip(&mut copies);
        let on_device = on_device.map(|(message, copy)| Message { buffer: copy.raw(), ..*message });
        let on_device: Vec<_> = on_device.collect();
        // SAFETY: as in `submit`.
        let ticket = unsafe { self.nccl.submit_group(Channel::Data, &on_device) }?;
        self.in_flight.lock().unwrap().insert(format!("{ticket:?}"), copies);
        Ok(ticket)
    }

    fn wait(&self, ticket: Ticket, deadline: Instant) -> Result<Timing, Error> {
        let copied = self.in_flight.lock().unwrap().remove(&format!("{ticket:?}"));
        let timing = self.nccl.wait(ticket, deadline)?;
        for mut copied in copied.into_iter().flatten() {
            copied.copy_back(&self.device);
        }
        Ok(timing)
    }

    fn memory_at_risk(&self) -> bool {
        self.nccl.memory_at_risk()
    }

    fn abandon(&self, reason: &str) {
        self.nccl.abandon(reason);
    }
}
