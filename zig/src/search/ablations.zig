//! What searches are compared with: each takes one idea away (docs/HACKING.md). Compiled where `base.ablations` says so;
//! elsewhere `of` answers with constants, and no branch is left.
const std = @import("std");
const base = @import("base");
const cache_room = @import("cache");
const Shared = @import("shared.zig").Shared;

pub const CacheUnit = enum { color_set, record, page };

pub const Ablations = struct {
    /// Of a page only records that were met before it came are scored, not all that it holds; and with links on disk it serves
    /// the one vertex that was followed from it.
    record_only: bool = false,
    /// Links on disk: a search starts at the entry points alone.
    entries_only: bool = false,
    /// Links on disk: the nearest candidate is followed and no other, as a plain best-first search does.
    strict_order: bool = false,
    /// Links on disk: only the page of the candidate that is followed next is asked for.
    next_only: bool = false,
    /// What stays in the cache of a page that was read.
    cache_unit: CacheUnit = .color_set,
    /// Whose slot another record takes.
    cache_policy: cache_room.Policy = .clock,

    /// From words such as `record_only` and `cache_unit=page`.
    pub fn parse(text: []const u8) error{Unknown}!Ablations {
        var ablations: Ablations = .{};
        var words = std.mem.tokenizeScalar(u8, text, ' ');
        while (words.next()) |word| try ablations.take(word);
        return ablations;
    }

    fn take(self: *Ablations, word: []const u8) error{Unknown}!void {
        inline for (std.meta.fields(Ablations)) |field| {
            if (field.type == bool) {
                if (std.mem.eql(u8, word, field.name)) {
                    @field(self, field.name) = true;
                    return;
                }
            } else if (std.mem.startsWith(u8, word, field.name ++ "=")) {
                @field(self, field.name) = std.meta.stringToEnum(field.type, word[field.name.len + 1 ..]) orelse return error.Unknown;
                return;
            }
        }
        return error.Unknown;
    }
};

pub inline fn of(shared: *const Shared) Ablations {
    return if (base.ablations) shared.ablations else .{};
}

test "words name what is taken away, and unknown ones are errors" {
    try std.testing.expectEqual(Ablations{}, try Ablations.parse(""));
    try std.testing.expectEqual(
        Ablations{ .strict_order = true, .cache_policy = .lru, .cache_unit = .page },
        try Ablations.parse("strict_order cache_policy=lru cache_unit=page"),
    );
    for ([_][]const u8{ "strict", "strict_order=1", "cache_unit", "cache_unit=row" }) |text|
        try std.testing.expectError(error.Unknown, Ablations.parse(text));
}
