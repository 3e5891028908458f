//! Kernels: compiled for a device, and launched with views as arguments.
#![allow(unsafe_code)] // launches

use std::ffi::{CString, c_int, c_void};
use std::fmt;
use std::ptr;
use std::sync::Arc;

use cudarc::driver::sys::{CUfunction, CUfunction_attribute, CUmodule};

use super::Error;
use super::cubin_cache;
use super::device::Cuda;
use super::driver::Driver;
use super::nvrtc::Source;
use crate::{Element, View, ViewMut};

/// The kernels of one source, compiled for a device and loaded.
#[derive(Debug)]
pub struct Module {
    loaded: Arc<Loaded>,
}

/// Machine code in a device, until this is dropped.
struct Loaded {
    handle: CUmodule,
    device: Cuda,
}

/// A kernel that can be launched.
#[derive(Clone)]
pub struct Kernel {
    function: CUfunction,
    name: &'static str,
    /// Has the function.
    module: Arc<Loaded>,
    /// Dynamic shared memory of a block.
    shared_bytes: u32,
}

// SAFETY: a module belongs to no thread.
unsafe impl Send for Loaded {}
// SAFETY: as above; the driver's functions may be called by several threads at a time.
unsafe impl Sync for Loaded {}
// SAFETY: as above, for a function of a module.
unsafe impl Send for Kernel {}
// SAFETY: as above.
unsafe impl Sync for Kernel {}

/// Blocks, and threads of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grid {
    /// Blocks in x, y and z.
    pub blocks: [u32; 3],
    /// Threads of a block.
    pub threads: u32,
}

impl Grid {
    /// A row of blocks.
    pub fn row(blocks: usize, threads: u32) -> Self {
        Self::of([blocks, 1, 1], threads)
    }

    /// Blocks in three dimensions.
    ///
    /// # Panics
    /// Panics if a dimension exceeds 32 bits.
    pub fn of(blocks: [usize; 3], threads: u32) -> Self {
        let blocks = blocks.map(|count| u32::try_from(count).expect("a grid of 32 bits"));
        Self { blocks, threads }
    }

    /// Enough blocks of `threads` to cover so many items, but not more than `blocks_max`, for
    /// kernels that stride over the rest.
    pub fn covering(items: usize, threads: u32, blocks_max: usize) -> Self {
        Self::row(items.div_ceil(threads as usize).clamp(1, blocks_max), threads)
    }
}

impl Module {
    /// Compiles a source for the device, unless the cache on disk has it, and loads it.
    ///
    /// # Errors
    /// Fails if the compiler or the driver refuses it.
    pub fn load(device: &Cuda, source: &Source<'_>) -> Result<Self, Error> {
        let architecture = device.properties().compute_capability.architecture();
        let cubin = match device.is_dry() {
            true => Vec::new(),
            false => cubin_cache::get_or_compile(source, &architecture)?,
        };
        let mut handle = ptr::null_mut();
        let load = |driver: &Driver| {
            // SAFETY: it reads a whole image, and writes one pointer.
            unsafe { (driver.cuModuleLoadData)(&raw mut handle, cubin.as_ptr().cast()) }
        };
        let loaded = device.context().call(load);
        loaded.map_err(|status| Error::kernel(source.name, "loading", status))?;
        Ok(Self { loaded: Arc::new(Loaded { handle, device: device.clone() }) })
    }

    /// A kernel by its name.
    ///
    /// # Errors
    /// Fails if there is none.
    ///
    /// # Panics
    /// Panics if the name has a zero byte.
    pub fn kernel(&self, name: &'static str) -> Result<Kernel, Error> {
        let Loaded { handle, device } = &*self.loaded;
        let text = CString::new(name).expect("a name without a zero byte");
        let mut function = ptr::null_mut();
        let find = |driver: &Driver| {
            // SAFETY: the name ends with a zero; it writes one pointer.
            unsafe { (driver.cuModuleGetFunction)(&raw mut function, *handle, text.as_ptr()) }
        };
        let found = device.context().call(find);
        found.map_err(|status| Error::kernel(name, "finding", status))?;
        Ok(Kernel { function, name, module: Arc::clone(&self.loaded), shared_bytes: 0 })
    }
}

impl Kernel {
    /// Returns the kernel with so much dynamic shared memory for each block of every launch. Above
    /// 48 KiB a kernel has to request it, and not every device has it.
    ///
    /// # Errors
    /// Fails if the device has less.
    pub fn with_dynamic_shared(mut self, bytes: u32) -> Result<Self, Error> {
        let attribute = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        let set = |driver: &Driver| {
            let attribute = attribute as c_int;
            // SAFETY: the module has the function.
            unsafe { (driver.cuFuncSetAttribute)(self.function, attribute, bytes.cast_signed()) }
        };
        let set = self.module.device.context().call(set);
        set.map_err(|status| Error::kernel(self.name, "giving shared memory to", status))?;
        self.shared_bytes = bytes;
        Ok(self)
    }

    /// A launch without arguments so far.
    pub fn launch(&self, grid: Grid) -> Launch<'_> {
        Launch { kernel: self, grid, arguments: [0; ARGUMENTS_MAX], count: 0, moved_bytes: 0 }
    }
}

const ARGUMENTS_MAX: usize = 20;

/// A launch, and the arguments it was given so far.
#[derive(Debug)]
pub struct Launch<'a> {
    kernel: &'a Kernel,
    grid: Grid,
    /// The bytes of each argument, from the first: none has more than eight.
    arguments: [u64; ARGUMENTS_MAX],
    count: usize,
    /// Size of what the kernel reads and writes.
    moved_bytes: u64,
}

impl Launch<'_> {
    /// Elements that the kernel reads.
    #[must_use]
    pub fn reads<E: Element>(self, view: View<'_, E>) -> Self {
        self.reads_part(view, view.len())
    }

    /// Elements of which the kernel reads so many.
    #[must_use]
    pub fn reads_part<E: Element>(self, view: View<'_, E>, elements: usize) -> Self {
        self.moves::<E>(elements).push(view.cuda_address())
    }

    /// Elements that the kernel writes.
    #[must_use]
    pub fn writes<E: Element>(self, view: &mut ViewMut<'_, E>) -> Self {
        let elements = view.len();
        self.writes_part(view, elements)
    }

    /// Elements of which the kernel writes so many.
    #[must_use]
    pub fn writes_part<E: Element>(self, view: &mut ViewMut<'_, E>, elements: usize) -> Self {
        self.moves::<E>(elements).push(view.cuda_address())
    }

    /// Elements that the kernel reads and writes.
    #[must_use]
    pub fn updates<E: Element>(self, view: &mut ViewMut<'_, E>) -> Self {
        let elements = view.len();
        self.updates_part(view, elements)
    }

    /// Elements of which the kernel reads and writes so many.
    #[must_use]
    pub fn updates_part<E: Element>(self, view: &mut ViewMut<'_, E>, elements: usize) -> Self {
        self.moves::<E>(2 * elements).push(view.cuda_address())
    }

    fn moves<E: Element>(mut self, elements: usize) -> Self {
        self.moved_bytes += (elements * size_of::<E>()) as u64;
        self
    }

    /// A null pointer, where an argument is optional.
    #[must_use]
    pub fn null(self) -> Self {
        self.push(0)
    }

    /// An `int`.
    ///
    /// # Panics
    /// Panics if the number exceeds 31 bits.
    #[must_use]
    pub fn int(self, number: usize) -> Self {
        let number = i32::try_from(number).expect("a number of 31 bits");
        self.push(u64::from(number.cast_unsigned()))
    }

    /// An `int` that is 0 or 1.
    #[must_use]
    pub fn flag(self, flag: bool) -> Self {
        self.int(usize::from(flag))
    }

    /// An `i64`.
    #[must_use]
    pub fn long(self, number: usize) -> Self {
        self.push(number as u64)
    }

    /// A `float`.
    #[must_use]
    pub fn float(self, number: f64) -> Self {
        self.push(u64::from((number as f32).to_bits()))
    }

    fn push(mut self, bits: u64) -> Self {
        self.arguments[self.count] = bits;
        self.count += 1;
        self
    }

    /// Starts the kernel on the compute stream.
    ///
    /// # Safety
    /// The arguments are those of the kernel, in its order, and it stays inside the views for this
    /// grid.
    ///
    /// # Errors
    /// Those of the driver.
    pub unsafe fn run(mut self) -> Result<(), Error> {
        let Self { kernel, grid, .. } = self;
        let mut pointers = [ptr::null_mut::<c_void>(); ARGUMENTS_MAX];
        for (pointer, argument) in pointers.iter_mut().zip(&mut self.arguments) {
            *pointer = ptr::from_mut(argument).cast();
        }
        let [x, y, z] = grid.blocks;
        let device = &kernel.module.device;
        let launch = |driver: &Driver| {
            // SAFETY: as this function; the driver copies the arguments before it returns.
            unsafe {
                (driver.cuLaunchKernel)(
                    kernel.function,
                    x,
                    y,
                    z,
                    grid.threads,
                    1,
                    1,
                    kernel.shared_bytes,
                    device.compute().handle,
                    pointers.as_mut_ptr(),
                    ptr::null_mut(),
                )
            }
        };
        let launched = device.context().call(launch);
        device.count_launch(self.moved_bytes);
        launched.map_err(|status| Error::kernel(kernel.name, "launching", status))
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        // SAFETY: this owns the module, and every kernel of it keeps this.
        let unload = |driver: &Driver| unsafe { (driver.cuModuleUnload)(self.handle) };
        let _ = self.device.context().call(unload);
    }
}

impl fmt::Debug for Loaded {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Loaded(on {:?})", self.device)
    }
}

impl fmt::Debug for Kernel {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Kernel({} on {:?})", self.name, self.module.device)
    }
}
