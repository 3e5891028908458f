//! The backend of a world: communication between its ranks, and its shutdown.

use std::ops::Deref;
#[cfg(feature = "mpi")]
use std::time::{Duration, Instant};

use collectives::Collective;

/// A backend that can be closed. Dropping it closes it as well, but reports no error.
#[derive(Debug)]
pub struct Group(Kind);

#[derive(Debug)]
enum Kind {
    /// Backend that needs no close.
    Plain(Box<dyn Collective>),
    #[cfg(feature = "mpi")]
    Mpi { mpi: Box<collectives::Mpi>, close_timeout: Duration },
}

impl Group {
    #[cfg(feature = "mpi")]
    pub(super) fn mpi(mpi: collectives::Mpi, close_timeout: Duration) -> Self {
        Self(Kind::Mpi { mpi: Box::new(mpi), close_timeout })
    }

    /// Waits for the other ranks, then finalises MPI.
    ///
    /// # Errors
    /// The error of [`Mpi::close`](collectives::Mpi::close). The communication thread may then be
    /// stuck in the library, so that the process should end [without
    /// clean-up](crate::signals::exit_immediately).
    pub fn close(self) -> Result<(), collectives::Error> {
        match self.0 {
            Kind::Plain(_) => Ok(()),
            #[cfg(feature = "mpi")]
            Kind::Mpi { mpi, close_timeout } => mpi.close(Instant::now() + close_timeout),
        }
    }
}

impl<C: Collective + 'static> From<C> for Group {
    fn from(collective: C) -> Self {
        Self(Kind::Plain(Box::new(collective)))
    }
}

impl Deref for Group {
    type Target = dyn Collective;

    fn deref(&self) -> &Self::Target {
        match &self.0 {
            Kind::Plain(collective) => &**collective,
            #[cfg(feature = "mpi")]
            Kind::Mpi { mpi, .. } => &**mpi,
        }
    }
}
