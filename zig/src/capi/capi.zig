//! The capi room: velo.h made real. Checks arguments, picks a device, maps errors; no logic.
comptime {
    _ = @import("errors.zig");
    _ = @import("filters.zig");
}
