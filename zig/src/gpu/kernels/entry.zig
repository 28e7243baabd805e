//! The kernels as a module of PTX exports them. Compiled by build.zig for sm_80, which later cards take, too.
const std = @import("std");
const layout = @import("../layout.zig");
const warp = @import("../warp.zig");
const search = @import("search.zig");

/// Nothing is checked in kernels, and nothing could be printed.
pub const panic = std.debug.no_panic;

comptime {
    // Of a size that each launch chooses: `Batch.warp_bytes` of each warp.
    asm (".extern .shared .align 16 .b8 shared_memory[];");
}

/// A warp answers a query: blocks of whole warps, as many as there are queries or more.
export fn velo_search(index: layout.Index, batch: layout.Batch) callconv(.kernel) void {
    run(.query, &index, &batch);
}

/// The same for vertices to be inserted into a graph.
export fn velo_insert(index: layout.Index, batch: layout.Batch) callconv(.kernel) void {
    run(.vertex, &index, &batch);
}

inline fn run(comptime kind: search.Kind, index: *const layout.Index, batch: *const layout.Batch) void {
    @setEvalBranchQuota(1 << 16);
    const place = warp.place();
    const query = place.block * place.warps + place.warp;
    if (query >= batch.count) return;
    const shared = asm ("mov.u32 %[shared], shared_memory;"
        : [shared] "=r" (-> u32),
    );
    search.run(kind, index, batch, query, @ptrFromInt(shared + place.warp * batch.warp_bytes()));
}
