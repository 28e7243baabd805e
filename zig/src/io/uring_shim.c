/* io_uring shim */
