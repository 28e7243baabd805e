//! A part takes the place of the parts and rows that it was made of. Whoever makes it takes a view, writes an ordinary index
//! from what lives in it, and comes back; what was deleted or replaced meanwhile is dead in the new part from its first
//! moment, and rows that came meanwhile stay in the delta. One root, written as at every checkpoint, does all of it.
const std = @import("std");
const base = @import("base");
const checkpoints = @import("checkpoint.zig");
const delta_room = @import("delta.zig");
const diagnostics = @import("diagnostic.zig");
const find = @import("find.zig");
const folder = @import("folder.zig");
const writing = @import("write.zig");
const View = @import("view.zig").View;
const BitSet = base.BitSet;
const Diagnostic = diagnostics.Diagnostic;
const Error = diagnostics.Error;

pub const Fold = struct {
    view: *const View,
    /// Parts of the view that the new one takes the place of; ascending.
    parts: []const u32,
    /// The rows of these parts that went into the new one: a bit a row, and each part begins a word. A merge that goes on
    /// after a kill took them before the view, in which some of them may be dead.
    taken: []const u64,
    /// Whether the rows of its delta went into it as well.
    with_delta: bool,
    /// Null: nothing lived, and no part is made.
    part: ?struct {
        /// A folder, complete and synced but for ids.find.
        path: []const u8,
        uuid: []const u8,
        ids: find.Ids,
    },
};

/// The ids are borrowed until the folder closes or another fold takes the part away.
pub fn commit(live: anytype, what: Fold, diagnostic: *Diagnostic) Error!folder.Done {
    var finder_bytes: ?[]align(4) u8 = null;
    errdefer if (finder_bytes) |bytes| live.allocator.free(bytes);
    if (what.part) |part| finder_bytes = try find.write(live, part.path, part.ids, diagnostic);
    live.mutex.lock();
    defer live.mutex.unlock();
    while (live.syncing) live.changed.wait(&live.mutex); // from here on the lock is kept
    try live.check_writable(diagnostic);
    if (!live.is_live) {
        diagnostic.say("nothing was written to this index: there is nothing to fold", .{});
        return error.InvalidArgument;
    }
    const numbers = try live.allocator.alloc(u32, what.parts.len);
    defer live.allocator.free(numbers);
    if (is_stale(live, &what, numbers)) {
        if (finder_bytes) |bytes| live.allocator.free(bytes);
        finder_bytes = null;
        return .{ .outcome = .stale, .sequence = live.sequence };
    }
    const Parts = @TypeOf(live.parts);
    const Part = @typeInfo(@TypeOf(live.parts.items)).pointer.child;
    var parts: Parts = .empty;
    errdefer parts.deinit(live.allocator);
    try parts.ensureTotalCapacity(live.allocator, live.parts.items.len + 1);

    // Where the first of its sources stood, so that parts stay in the order of their age.
    const at = if (numbers.len > 0) numbers[0] else live.parts.items.len;
    for (live.parts.items, 0..) |part, i| {
        if (std.mem.indexOfScalar(u32, numbers, @intCast(i)) == null) parts.appendAssumeCapacity(part);
    }
    var made: ?*Part = null;
    if (what.part) |part| {
        const n = part.ids.len();
        var one = try live.new_part(part.path, part.uuid, n, null);
        errdefer one.deinit(live);
        one.ids = part.ids;
        one.finder_owned = finder_bytes;
        finder_bytes = null;
        one.finder = find.Finder.parse(one.finder_owned.?, n) catch unreachable; // as we just made it
        try bury(live, &one, &what, numbers, diagnostic);
        const place = @min(at, parts.items.len);
        parts.insertAssumeCapacity(place, one);
        made = &parts.items[place];
    }
    errdefer if (made) |one| one.deinit(live);
    const old_delta = live.delta;
    const delta = if (what.with_delta) try old_delta.after(@intCast(what.view.records.len)) else old_delta.hold();
    errdefer delta.release();

    try checkpoints.make_anew(live, parts.items, delta, diagnostic);
    var old_parts = live.parts;
    {
        live.seen.lock();
        defer live.seen.unlock();
        live.parts = parts;
        live.delta = delta;
        live.layout += 1;
        live.delta_layout += @intFromBool(what.with_delta);
        live.show_all(); // rows that waited for their sync, too: the new root holds them
    }
    old_delta.release();
    for (old_parts.items, 0..) |*part, i| {
        if (std.mem.indexOfScalar(u32, numbers, @intCast(i)) != null) part.deinit(live);
    }
    old_parts.deinit(live.allocator);
    checkpoints.remove_litter(live, diagnostic) catch {}; // the next sweep does it
    return writing.told(live, .{ .sequence = live.sequence });
}

/// Whether another fold took one of its sources; else the number that each of its parts has by now. Folds of other parts, and
/// of the delta, may be under way together: no folder of a part gets the name of another.
fn is_stale(live: anytype, what: *const Fold, numbers: []u32) bool {
    for (what.parts, numbers) |of_view, *number| {
        const path = what.view.parts[of_view].path;
        number.* = for (live.parts.items, 0..) |*part, i| {
            if (std.mem.eql(u8, part.path, path)) break @intCast(i);
        } else return true;
    }
    return what.with_delta and what.view.delta_layout != live.delta_layout;
}

/// Rows of the sources that were taken and are gone by now are dead in the new part.
fn bury(live: anytype, part: anytype, what: *const Fold, numbers: []const u32, diagnostic: *Diagnostic) Error!void {
    var taken = what.taken;
    for (numbers) |number| {
        const source = &live.parts.items[number];
        const words = source.gone.words;
        defer taken = taken[words.len..];
        for (words, taken[0..words.len], 0..) |gone, word, w| {
            var new = gone & word;
            while (new != 0) : (new &= new - 1)
                try bury_one(part, source.ids.?, 64 * w + @ctz(new), diagnostic);
        }
    }
    if (!what.with_delta) return;
    for (0..what.view.rows) |i| {
        const row: u32 = @intCast(i);
        if (!live.delta.gone.bits.isSet(row) or what.view.dead.contains(row)) continue;
        const place = live.delta.place_of(row);
        try bury_one(part, place.record.rows.ids, place.at, diagnostic);
    }
}

fn bury_one(part: anytype, ids: find.Ids, row: usize, diagnostic: *Diagnostic) Error!void {
    const vertex = part.finder.?.find(part.ids.?, ids, row) orelse {
        diagnostic.say("a part was made without a row that it should have", .{});
        return error.InvalidArgument;
    };
    part.gone.insert(vertex);
}
