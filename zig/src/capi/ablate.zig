//! velo_ablate, in libvelo_bench alone: what the ideas of a search are worth is measured by taking them away.
const std = @import("std");
const search = @import("search");
const common = @import("common.zig");

/// Of indexes that are opened from now on. A bench sets them from one thread, between one index and the next.
pub var of_next_index: search.Ablations = .{};

/// `names` are words apart by spaces: search.Ablations says which.
export fn velo_ablate(names: ?[*:0]const u8) i32 {
    const text = std.mem.span(names orelse return common.null_argument("names"));
    of_next_index = search.Ablations.parse(text) catch
        return common.fail(.invalid_argument, .{ .argument = "names" }, "an ablation in '{s}' is unknown", .{text});
    return common.ok;
}
