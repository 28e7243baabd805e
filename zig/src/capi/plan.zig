//! velo_plan_sizes of velo.h.
const std = @import("std");
const base = @import("base");
const index = @import("index");
const common = @import("common.zig");

pub const Options = index.sizes.Options;
pub const Sizes = index.sizes.Sizes;

export fn velo_plan_sizes(options: ?*const Options, sizes_out: ?*Sizes) i32 {
    return common.status_of_call(plan(options, sizes_out));
}

fn plan(options: ?*const Options, sizes_out: ?*Sizes) common.Failure!void {
    var o = try common.read(Options, "options", options);
    const out = try common.need("sizes_out", sizes_out);
    o.shards = @max(1, o.shards);
    const dtype = std.enums.fromInt(index.Dtype, o.dtype) orelse return common.report(.invalid_argument, .{ .argument = "dtype" }, "dtype {d} is unknown", .{o.dtype});
    if (o.dim == 0) return common.report(.invalid_argument, .{ .argument = "dim" }, "dim is 0", .{});
    try common.within(o, .{ "dim", "memory_bits", "degree" });
    if (o.record_bits != Options.open) try common.within(o, .{"record_bits"});
    if (o.links_kept != Options.open) try common.within(o, .{"links_kept"});
    if (o.row_count / o.shards >= base.limits.vertices_max)
        return common.report(.invalid_argument, .{ .argument = "row_count" }, "{d} rows are too many for {d} shards", .{ o.row_count, o.shards });
    const sizes: Sizes = .of(&o, dtype);
    const needed = sizes.needed_bytes;
    if (o.memory_bytes != 0 and needed > @max(o.memory_bytes, o.memory_floor_bytes)) {
        if (sizes.page_codes != 0)
            return common.report(.budget_too_small, .{ .argument = "search_memory", .needed_bytes = needed }, "search_memory is {d} bytes; a code of each page, codebooks and the page directory take {d}", .{ o.memory_bytes, needed });
        return common.report(.budget_too_small, .{ .argument = "search_memory", .needed_bytes = needed }, "search_memory is {d} bytes; the codes, of {d} bits a dimension, and the page directory take {d}", .{
            o.memory_bytes, sizes.memory_bits, needed,
        });
    }
    common.write_versioned(Sizes, out, &sizes);
}

export fn velo_links_step(place: u32, shared: i32) u32 {
    return index.sizes.links_step(place, shared != 0);
}
