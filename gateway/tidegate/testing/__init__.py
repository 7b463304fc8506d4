"""Building blocks for tests of Tidegate and of its plugins; the extra ``tidegate[testing]``.

Conformance kits, one per kind of plugin, the same for ours and third parties'::

    pytest --pyargs tidegate.testing.store_kit --store=NAME
    pytest --pyargs tidegate.testing.cursor_kit --cursor=NAME

``memory_store`` is the reference for what a store should do, ``faulty_storage`` a file system
that loses power, ``embedded`` a whole gateway inside a test. Import what you need from the
modules; this package itself imports nothing, because pytest loads it for its options.
"""
