//! The capi room: velo.h made real. Checks arguments, picks a device, maps errors; no logic.
const builtin = @import("builtin");

const base = @import("base");

comptime {
    _ = @import("errors.zig");
    _ = @import("filters.zig");
    _ = @import("build.zig");
    _ = @import("vectors.zig");
    _ = @import("open.zig");
    _ = @import("handle.zig");
    _ = @import("info.zig");
    _ = @import("call.zig");
    _ = @import("delta.zig");
    _ = @import("submit.zig");
    _ = @import("folder.zig");
    _ = @import("layout.zig");
    _ = @import("calibration.zig");
    _ = @import("filter_plan.zig");
    _ = @import("device.zig");
    _ = @import("live.zig");
    _ = @import("live_view.zig");
}

export fn velo_version() [*:0]const u8 {
    return "0.1.0";
}

export fn velo_cpu_level() [*:0]const u8 {
    return @tagName(base.cpu.current());
}

export fn velo_build_mode() [*:0]const u8 {
    return @tagName(builtin.mode);
}

test {
    _ = @import("common.zig");
    _ = @import("errors.zig");
    _ = @import("filters.zig");
    _ = @import("tickets.zig");
    _ = @import("live.zig");
    _ = @import("live_view.zig");
    _ = @import("numbers.zig");
    _ = @import("layout.zig");
}
