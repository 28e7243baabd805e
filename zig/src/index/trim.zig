//! Fewer links in memory than links.bin holds: of each list those stay that pruning put first, by their tiers. (The
//! nearest are not the first: pruning puts those first that serve navigation over few links.)
const std = @import("std");
const layout = @import("layout");
const base = @import("base");
const Links = layout.links.Links;
const adjacency = layout.adjacency;
const in_memory = @import("lists_in_memory.zig");

/// Below this many links a vertex navigation in memory loses its way; the plan goes to links on disk instead.
pub const kept_min = layout.links.tier_bounds[0];

/// As many links a vertex as a budget is spent on. More reach a recall with no fewer estimates (on a million descriptors, with
/// and without filters; on text of 384 dimensions), and the pages that fit in their place save reads
/// (docs/decisions/0022).
pub const kept_enough = 16;

pub const Trimmed = struct { links: Links, memory: base.AlignedBytes, kept: u32 };

pub const Error = in_memory.Error || error{NoRoom};

/// Bytes that `kept` links a vertex would take, a little more than less.
pub fn estimate_bytes(links: *const Links, built: u32, kept: u32) u64 {
    return estimate_of(links.groups.len * 8 + links.lengths.len, links.heap.len, built, kept);
}

/// The same from what finding a list takes, and from the bytes of all lists as built.
pub fn estimate_of(overhead: u64, heap_bytes: u64, built: u32, kept: u32) u64 {
    // Fewer links lie farther apart: a gap grows by the factor that the count shrinks, about a bit a halving.
    const share = @as(f64, @floatFromInt(kept)) / @as(f64, @floatFromInt(@max(1, built)));
    const per_link = 1 + @max(0, -@log2(@max(share, 1e-3))) / 12;
    return overhead + @as(u64, @intFromFloat(@as(f64, @floatFromInt(heap_bytes)) * share * per_link * 1.02)) + 64;
}

pub const Choice = struct { kept: u32, bytes: u64 };

/// What of the links `room` bytes hold, by estimate; null where too few for navigation do.
pub fn choose(header: *const layout.headers.Links, room: ?u64) ?Choice {
    const built = header.links_built;
    if (built == 0) return null;
    const most = if (room == null) built else @min(built, kept_enough);
    if (most == built and (room == null or header.resident_bytes() <= room.?)) return .{ .kept = built, .bytes = header.resident_bytes() };
    var kept = step_down(built, @min(built, most + 1));
    while (kept) |links| : (kept = step_down(built, links)) {
        const bytes = estimate_of(header.resident_bytes() - header.heap_bytes, header.heap_bytes, built, links);
        if (bytes <= room.?) return .{ .kept = links, .bytes = bytes };
    }
    return null;
}

/// Keeps at most `wanted` links a vertex, and at most what `room` bytes hold; where that is too little, `needed` says what
/// would do. Consumes nothing: `links` stays valid.
pub fn trim(
    allocator: std.mem.Allocator,
    links: *const Links,
    tiers: []const u8,
    wanted: u32,
    built: u32,
    room: ?u64,
    threads: u32,
    release: in_memory.Release,
    needed: *u64,
) Error!Trimmed {
    needed.* = estimate_bytes(links, built, kept_min);
    // One of the tiers' numbers, or all that were built.
    var kept = step_down(built, @max(wanted, kept_min) + 1) orelse return error.NoRoom;
    if (room) |bytes| {
        while (estimate_bytes(links, built, kept) > bytes) kept = step_down(built, kept) orelse break;
    }
    while (true) {
        var trimmed = try trim_to(allocator, .{ .links = links, .tiers = tiers, .most = built, .release = release }, kept, threads);
        if (room == null or trimmed.memory.bytes.len <= room.?) return trimmed;
        needed.* = trimmed.memory.bytes.len;
        trimmed.memory.free();
        kept = step_down(built, kept) orelse return error.NoRoom;
    }
}

/// The next smaller number of links that can be kept; null below the first tier.
fn step_down(built: u32, kept: u32) ?u32 {
    if (built < kept) return built;
    var best: ?u32 = null;
    for (layout.links.tier_bounds) |bound| {
        if (bound < kept) best = bound;
    }
    return best;
}

fn trim_to(allocator: std.mem.Allocator, built: in_memory.Built, kept: u32, threads: u32) in_memory.Error!Trimmed {
    const source: Lower.Source = .{ .built = built, .within = if (kept >= built.most) 8 else layout.links.tiers_within(kept) };
    const made = try in_memory.make(Lower, allocator, &source, built.links.n, threads);
    return .{ .kept = kept, .memory = made.memory, .links = made.links };
}

/// Chooses the links of the lower tiers; a list is that of a vertex.
const Lower = struct {
    source: *const Source,
    buffer: [adjacency.neighbors_max]u32 = undefined,

    pub const Source = struct {
        built: in_memory.Built,
        /// Tiers below this stay.
        within: u4,

        pub fn first(_: *const Source, list: u32) u32 {
            return list;
        }
    };

    pub const given_up = 1;

    pub fn init(_: std.mem.Allocator, source: *const Source) error{OutOfMemory}!Lower {
        return .{ .source = source };
    }
    pub fn deinit(_: *Lower, _: std.mem.Allocator) void {}

    pub fn of(self: *Lower, vertex: u32, most: u32) error{BadList}![]const u32 {
        const ids = try self.source.built.decode(vertex, &self.buffer);
        const tiers = try self.source.built.tiers_of(vertex, ids);
        var count: usize = 0;
        for (ids, 0..) |id, link| {
            if (layout.links.get_tier(tiers, link) >= self.source.within) continue;
            ids[count] = id;
            count += 1;
        }
        return ids[0..@min(count, most)];
    }
};
